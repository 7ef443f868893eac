package lock

import (
	"errors"
	"fmt"
	"time"

	"github.com/interlock-go/interlock/core/driver"
	"github.com/interlock-go/interlock/core/internal/clock"
	"github.com/interlock-go/interlock/core/internal/timers"
)

// ownership is this process's unbroken possession of a key in the store, under one
// owner. It passes from hold to hold without a request, for as long as that is fair
// to other processes.
type ownership struct {
	timers.Place // in the renewer's events

	renewals uint32 // of the renewer that were confirmed; it stands where there is room

	lock *lock
	// holder has the lock. Those that share an ownership of the kind Shared follow
	// it. nil: vacant, until a renewal has confirmed the lease.
	holder *Waiter
	seq    uint64 // of the owner
	lease  time.Duration

	// sent is when the last confirmed acquire or renewal was sent, from which the
	// lease counts. ahead is how far the wall clock had run ahead when the store
	// last said that the lock is ours.
	sent  clock.Instant
	ahead time.Duration

	// Fencing tokens: the highest given out, and what the store minted and when its
	// reply came.
	token   int64
	base    int64
	replied clock.Instant

	// The turn of this process among others: when it began, or when the store last
	// said that no other process waits, and how often the lock was given since.
	began  clock.Instant
	grants int32
	atMost int32 // of a permit

	// bound is when the holder has held for its MaxHold, of those that share it the
	// first, or earlier; zero: none has a bound.
	bound clock.Instant

	renewAt clock.Instant
	lastErr *error // of the last renewal; nil: it was confirmed, as nearly all are

	kind      driver.Kind
	fixed     bool // not renewed
	over      bool // released or lost
	stopped   bool // MaxHold: no more renewals
	ambiguous bool // a try of the acquire may be executed later
	renewing  bool
	asked     bool // whether others wait, and no answer yet
	contended bool // other processes wait
}

// owner is the text that identifies the owner in the store.
func (own *ownership) owner() string { return own.lock.shard.table.owner(own.seq) }

// deadline is until when the lease is good without another renewal.
func (own *ownership) deadline() clock.Instant {
	return own.sent.Add(own.lease - clock.Drift(own.lease))
}

// ends is until when the store may keep a lease that is not renewed any more. The
// store counts by a clock of its own, from a moment before the reply came: of the
// acquire, or of a renewal, for which there is a sixth of the lease.
func (own *ownership) ends() clock.Instant {
	return max(own.replied, own.sent.Add(own.lease/6)).Add(own.lease + clock.Drift(own.lease))
}

// suits reports whether a waiter with these terms can have the lock by a hand-off.
func (own *ownership) suits(t *Terms) bool {
	return own.kind == t.Kind && int(own.atMost) == t.AtMost &&
		own.lease == t.Lease && own.fixed == t.Fixed && !own.stopped
}

// suspended reports whether the machine may have slept since the lease was last
// confirmed: the wall clock went on, the monotonic clock did not.
func (own *ownership) suspended(ahead time.Duration) bool {
	return ahead-own.ahead > clock.Drift(own.lease)
}

// unknown reports whether the store has to be told the last token: the store did
// not mint it, or so long ago that it may have forgotten it. It minted all that a
// permit can have ([driver.Tokens]).
func (own *ownership) unknown(now clock.Instant) bool {
	return own.token != own.base && own.kind != driver.Permit || now.Sub(own.replied) > own.lease
}

// orphan is the owner for the reaper.
func (own *ownership) orphan(now clock.Instant) *orphan {
	return &orphan{
		key: own.lock.key, owner: own.owner(), kind: own.kind, atMost: int(own.atMost),
		ttl: own.lease, token: own.token, news: own.unknown(now),
	}
}

// nextEvent is when the renewer has to look at the ownership, and how much earlier
// it may: for the renewal, the holder's MaxHold or the deadline.
func (own *ownership) nextEvent() (at clock.Instant, tolerance time.Duration) {
	at = own.deadline()
	if !own.fixed && !own.stopped && own.renewAt < at {
		at, tolerance = own.renewAt, slack(own.lease)
	}
	if own.bound != 0 && own.bound < at {
		at, tolerance = own.bound, 0
	}
	return at, tolerance
}

// slack is how much earlier than due a renewal may go: fewer, larger batches.
func slack(lease time.Duration) time.Duration { return min(lease/60, 50*time.Millisecond) }

// grant makes a waiter the holder.
func (own *ownership) grant(w *Waiter, token int64, now clock.Instant, fx *effects) {
	own.lock.remove(w)
	own.holder, own.token = w, token
	own.grants++
	w.state, w.own, w.token, w.holds, w.since = granted, own, token, 1, now
	own.bound = 0
	own.noteBound(w)
	fx.handed = w
}

// handOff gives the lock to the next waiter, if that one may have it: no request, a
// new token. It reports whether the process keeps the lock, maybe without a holder
// until a renewal has confirmed the lease.
//
// The token is the last one plus one, whatever any clock says. The store hears of
// it at the release. If there is none, the store's own clock is ahead of it at the
// next grant, as long as that clock was not set back to before the acquire: a lock
// is not handed off more than once a microsecond.
func (own *ownership) handOff(now clock.Instant, ahead time.Duration, fx *effects) (kept bool) {
	w := own.lock.first
	if w == nil || own.fixed || !own.suits(w.Terms) || own.lock.shard.table.closed.Load() || now >= own.deadline() {
		return false
	}
	if own.turnOver(now, fx) {
		return false
	}
	if now.Sub(own.sent) > own.lease/3 || own.suspended(ahead) {
		// Less than two thirds are left, or the clocks disagree: no waiter gets it
		// before a renewal has confirmed it.
		own.holder, own.bound = nil, 0
		fx.renewNow(own, now)
		return true
	}
	own.grant(w, own.token+1, now, fx)
	if w.Terms.MaxHold > 0 {
		fx.schedule = own // it has an end of its own
	}
	return true
}

// turnOver reports whether the turn of this process is over, and other processes
// wait. When the turn is half over it has the renewer ask who waits, so that the
// answer is here at its end. Until it is, no other process is known to wait.
func (own *ownership) turnOver(now clock.Instant, fx *effects) bool {
	table := own.lock.shard.table
	turn, grants := now.Sub(own.began), int(own.grants)
	if own.contended && (turn >= table.turnTime || grants >= table.turnCount) {
		return true
	}
	if !own.asked && !own.contended && (turn >= table.turnTime/2 || grants >= table.turnCount/2) {
		own.asked = true
		fx.renewNow(own, now)
	}
	return false
}

// check returns why a hold cannot be trusted at this moment, or nil.
func (w *Waiter) check(now clock.Instant, ahead time.Duration, fx *effects) error {
	switch {
	case w.err != nil:
		return w.lostError()
	case w.state == gone:
		return nil // released
	case now >= w.own.deadline():
		return fmt.Errorf("%w: %q", ErrLost, w.lock.key)
	case w.own.suspended(ahead):
		fx.renewNow(w.own, now)
		return fmt.Errorf("%w: %q: the machine was suspended, and the lease not confirmed since", ErrLost, w.lock.key)
	}
	return nil
}

// reenter adds a hold. It reports whether there is a hold to add one to; an error
// says that there was one, and that it was lost.
func (w *Waiter) reenter(now clock.Instant) (bool, error) {
	switch {
	case w.err != nil && w.holds > 0:
		return false, w.lostError()
	case w.state != granted:
		return false, nil
	case now >= w.own.deadline():
		// The renewer is about to say so.
		return false, fmt.Errorf("%w: %q", ErrLost, w.lock.key)
	}
	w.holds++
	return true, nil
}

// look is the event that the next event of an ownership may be due. It reports
// whether the lease is to be renewed.
func (own *ownership) look(now clock.Instant, fx *effects) (renew bool) {
	if own.over {
		return false // released after the scheduler took it out
	}
	if now >= own.deadline() {
		own.expire(now, fx)
		return false
	}
	if own.bound != 0 && now >= own.bound {
		own.endBounded(now, fx)
	}
	if !own.fixed && !own.stopped && own.renewAt <= now.Add(slack(own.lease)) {
		if renew = !own.renewing; renew {
			// If it succeeds, that is when the next one is due.
			own.renewing, own.renewAt = true, now.Add(own.lease/3)
		} else {
			own.renewAt = clock.Never // the one under way decides, or the deadline
		}
	}
	fx.schedule = own
	return renew
}

// endBounded ends the holds that have reached their MaxHold. If no other is left,
// there are no more renewals: the key goes by the holder's release, or by its TTL.
func (own *ownership) endBounded(now clock.Instant, fx *effects) {
	own.bound, own.stopped = 0, true
	for w := own.holder; w != nil; w = w.next {
		switch {
		case w.err != nil:
		case w.Terms.MaxHold > 0 && now >= w.bound():
			w.err = &ErrMaxHold
			fx.lost(&loss{holder: w, reason: MaxHold, cause: ErrMaxHold})
		default:
			own.stopped = false
			own.noteBound(w)
		}
	}
}

// renewal is the outcome of a renewal, or of a question whether the lock is held.
type renewal struct {
	sent      clock.Instant
	ahead     time.Duration // of the wall clock, when it was sent
	scheduled bool          // it is one of the renewer's
	fix       bool          // if it succeeds, the lease is not renewed any more
	extended  bool          // it was not only a question
	contended bool          // other processes wait
	err       error
}

// renewed is the event that a renewal has its outcome. It reports whether that
// meant anything: a success that comes after the release or the loss does not.
func (own *ownership) renewed(r renewal, now clock.Instant, ahead time.Duration, fx *effects) bool {
	if r.scheduled {
		own.renewing = false
	}
	if r.fix && r.err == nil {
		own.fixed = true
	}
	if own.over {
		return false
	}
	switch {
	case errors.Is(r.err, driver.ErrNotOwner):
		own.failed(r.err)
		own.lose(reasonOf(r.err), driver.ErrNotOwner, now, fx)
	case now >= own.deadline():
		own.expire(now, fx)
	case r.err != nil:
		// Not a loss: the lease is good until its deadline. Again soon, but not later
		// than it was to be: a caller that asks again and again must not put it off.
		own.failed(r.err)
		own.renewAt = min(own.renewAt, now.Add(min(own.lease/20, time.Second)))
		fx.schedule = own
	default:
		own.confirmed(r, now, ahead, fx)
	}
	return true
}

// failed notes why a renewal failed.
func (own *ownership) failed(err error) { own.lastErr = &err }

// lastError is why the last renewal failed; nil if it did not.
func (own *ownership) lastError() error {
	if own.lastErr == nil {
		return nil
	}
	return *own.lastErr
}

// confirmed notes that the store has said that the lock is ours.
func (own *ownership) confirmed(r renewal, now clock.Instant, ahead time.Duration, fx *effects) {
	if r.extended && r.sent > own.sent {
		own.sent = r.sent
	}
	if r.scheduled {
		own.renewals++
	}
	own.lastErr, own.ahead = nil, r.ahead
	own.asked, own.contended = false, r.contended
	if !r.contended {
		// No other process waits: the turn of this process begins anew.
		own.began, own.grants = r.sent, 0
	}
	// A renewal that is scheduled for about then is left as it is.
	if due := own.sent.Add(own.lease / 3); due < own.renewAt || due > own.renewAt.Add(slack(own.lease)) || own.fixed {
		own.renewAt = due
		fx.schedule = own
	}
	if own.holder != nil {
		return
	}
	if !own.handOff(now, ahead, fx) {
		own.lock.giveUp(own, fx)
	}
	if fx.handed != nil {
		fx.more++
	}
}

// expire ends a lease at its deadline.
func (own *ownership) expire(now clock.Instant, fx *effects) {
	reason := Unavailable
	if own.fixed {
		reason = Expired
	}
	own.lose(reason, ErrLost, now, fx)
}

// lose ends a lease that can no longer be trusted, at once: the next waiter goes to
// the store with a fresh owner and does not wait for the loser. cause is for the
// holder.
func (own *ownership) lose(reason Reason, cause error, now clock.Instant, fx *effects) {
	if own.over {
		return // released, or lost before
	}
	l := own.lock
	l.retire(own, fx)
	fx.orphan = own.leftInStore(reason, now)
	l.tryAgain(own, fx)
	for w := own.holder; w != nil; {
		next := w.next
		w.prev, w.next = nil, nil
		why := reason
		if w.err != nil {
			why = 0 // MaxHold, which was told
		} else {
			w.err = &cause
		}
		w.state = gone
		fx.lost(&loss{holder: w, reason: why, cause: causeOfLoss(*w.err), err: own.lastError(), ended: true})
		w = next
	}
}

// leftInStore is what the reaper has to release after a loss, if anything. The lock
// may be ours still in the store, until its TTL, and the next caller should not have
// to wait for that. But it is released only after the holder was told; and when the
// locker closes, never: the handler may be at work.
func (own *ownership) leftInStore(reason Reason, now clock.Instant) *orphan {
	switch {
	case reason == Closed:
		return nil
	case !reason.denied() && !own.fixed && !own.stopped:
		return own.orphan(now)
	case !own.ambiguous:
		// There is nothing to release, or the holder relies on the whole of the
		// lease, which the store ends later than we do.
		return nil
	}
	// A late try of the acquire has to be seen to, once the lease is over.
	o := own.orphan(now)
	if !reason.denied() {
		o.from = own.ends()
	}
	return o
}
