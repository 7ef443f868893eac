package lock

import "github.com/interlock-go/interlock/core/internal/clock"

// effects are what an event of a lock asks for outside of it. The fields of the
// first part are applied before the shard's mutex is unlocked, those of the second
// part after it.
type effects struct {
	schedule *ownership // its next event is at another time
	cancel   *ownership // it has none any more
	look     *Waiter    // has to look again
	failed   *Waiter    // this and all that follow it have failed
	joined   []*Waiter  // hold the lock, together with handed
	more     int64      // so many holds more

	handed  *Waiter     // holds the lock
	wakeup  chan wakeup // of handed
	loss    *loss
	orphan  *orphan    // for the reaper
	release *ownership // to be released in the background
	unwatch func()
	linger  bool // the lock is to be dropped after the courtesy
	ended   bool // there is one hold less

	unserved error // why the store has not served a caller without a bound for a second
}

// loss is a lease that cannot be trusted any more.
type loss struct {
	holder *Waiter
	reason Reason // zero: told before
	cause  error
	err    error // of the last renewal
	ended  bool  // there is one hold less
	next   *loss // of another holder
}

// lost adds a loss.
func (fx *effects) lost(x *loss) { x.next, fx.loss = fx.loss, x }

// renewNow asks for a renewal out of turn.
func (fx *effects) renewNow(own *ownership, now clock.Instant) {
	if own.renewing || own.fixed || own.stopped || own.over {
		return
	}
	own.renewAt = now
	fx.schedule = own
}
