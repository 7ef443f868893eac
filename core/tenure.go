package core

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/interlock-go/interlock/core/driver"
	"github.com/interlock-go/interlock/core/internal/clock"
	"github.com/interlock-go/interlock/core/internal/timers"
)

// tenure is this process's unbroken possession of a key in the store, under one
// owner. It passes from turn to turn of the local queue without a round trip,
// for as long as that is fair to other processes. Guarded by the shard's mutex.
type tenure struct {
	timers.Place // in the watchdog

	entry *entry
	cur   *turn  // nil: vacant, kept until a renewal has confirmed it
	seq   uint64 // of the owner
	lease time.Duration

	// sent is when the last confirmed acquire or renewal was sent, from which
	// the lease counts. ahead is how far the wall clock had run ahead when the
	// store last said that the lock is ours.
	sent  clock.Instant
	ahead time.Duration

	// Fencing tokens: the highest given out, and what the store minted and when
	// its reply came.
	token   int64
	base    int64
	replied clock.Instant

	// The turn of this process among others: when it began, or when the store
	// last said that nobody waits, and how often the lock was given since.
	began  clock.Instant
	grants int32

	renewAt clock.Instant
	lastErr error

	fixed     bool // not renewed
	over      bool // retired or lost
	stopped   bool // MaxHold: no more renewals
	ambiguous bool // a try of the acquire may be executed later
	renewing  bool
	asked     bool // whether others wait, and no answer yet
	contended bool // other processes wait
}

// owner is who holds the lock in the store.
func (ten *tenure) owner() string { return ten.entry.shard.locker.owner(ten.seq) }

// deadline is until when the lease is good without another renewal.
func (ten *tenure) deadline() clock.Instant { return ten.sent.Add(ten.lease - clock.Drift(ten.lease)) }

// ends is until when the store may keep a lease that is not renewed any more. It
// counts by a clock of its own, from a moment before the reply came: of the acquire,
// or of a renewal, for which there is a sixth of the lease.
func (ten *tenure) ends() clock.Instant {
	return max(ten.replied, ten.sent.Add(ten.lease/6)).Add(ten.lease + clock.Drift(ten.lease))
}

// suits reports whether a caller that asks for such a lease can take over the
// tenure. A fixed lease is never handed on, and one that wants its own TTL
// whole does not take a hand-over.
func (ten *tenure) suits(c *config) bool {
	return ten.lease == c.lease() && ten.fixed == c.fixed() && !ten.stopped
}

// grant makes the head of the queue the holder, and returns it to be woken.
func (ten *tenure) grant(token int64, now clock.Instant) *turn {
	t := ten.entry.first
	ten.entry.remove(t)
	ten.cur, ten.token = t, token
	ten.grants++
	t.state, t.ten, t.token, t.holds, t.since = granted, ten, token, 1, now
	return t
}

// handOver gives a live tenure to the next waiter, if it may have it: no round
// trip, a new token. It reports whether the tenure stays in the process, and
// returns who has it; nobody, while a renewal has to confirm it first.
//
// The token is the last one plus one, whatever any clock says. The store hears of
// it at the release. If there is none, the store's own clock is ahead of it at the
// next grant, as long as that clock was not set back to before the acquire: a lock
// is not handed over more than once a microsecond.
func (ten *tenure) handOver(now clock.Instant, ahead time.Duration) (next *turn, kept bool) {
	e := ten.entry
	t, l := e.first, e.shard.locker
	if t == nil || ten.fixed || !ten.suits(t.cfg) || l.closed.Load() || now >= ten.deadline() {
		return nil, false
	}
	turn := now.Sub(ten.began)
	if ten.contended && (turn >= l.base.turnTime || int(ten.grants) >= l.base.turnCount) {
		return nil, false
	}
	if !ten.asked && !ten.contended && (turn >= l.base.turnTime/2 || int(ten.grants) >= l.base.turnCount/2) {
		// The turn is half over: ask who waits, so that the answer is here at
		// its end. Until it is, nobody is known to wait.
		ten.asked = true
		l.dog.renewNow(ten, now)
	}
	if now.Sub(ten.sent) > ten.lease/3 || ten.suspended(ahead) {
		// Less than two thirds are left, or the clocks disagree: nobody gets it
		// before a renewal has confirmed it.
		ten.cur = nil
		l.dog.renewNow(ten, now)
		return nil, true
	}
	ten.grant(ten.token+1, now)
	if t.cfg.maxHold > 0 {
		l.dog.watch(ten) // it has an end of its own
	}
	return t, true
}

// suspended reports whether the machine may have slept since the lease was last
// confirmed: the wall clock went on, the monotonic clock did not.
func (ten *tenure) suspended(ahead time.Duration) bool {
	return ahead-ten.ahead > clock.Drift(ten.lease)
}

// news reports whether the store has to be told the tenure's last token: it was
// not minted there, or so long ago that the store may have forgotten it.
func (ten *tenure) news(now clock.Instant) bool {
	return ten.token != ten.base || now.Sub(ten.replied) > ten.lease
}

// orphan is the tenure's owner for the reaper.
func (ten *tenure) orphan() orphan {
	return orphan{
		key: ten.entry.key, owner: ten.owner(), ttl: ten.lease, token: ten.token,
		news: ten.news(ten.entry.shard.locker.clock.Now()),
	}
}

// check returns why the turn cannot be trusted at this moment, or nil.
func (t *turn) check(now clock.Instant, ahead time.Duration) error {
	sh := t.entry.shard
	sh.mu.Lock()
	defer sh.mu.Unlock()
	switch {
	case t.err != nil:
		return t.lostError()
	case t.state == gone:
		return nil // released
	case now >= t.ten.deadline():
		return fmt.Errorf("%w: %q", ErrLost, t.key())
	case t.ten.suspended(ahead):
		sh.locker.dog.renewNow(t.ten, now)
		return fmt.Errorf("%w: %q: the machine was suspended, and the lease not confirmed since", ErrLost, t.key())
	}
	return nil
}

// confirm asks the store about a turn, now.
func (l *Locker) confirm(ctx context.Context, t *turn) error {
	sh := t.entry.shard
	sh.mu.Lock()
	ten := t.ten
	if t.state != granted {
		err := ErrReleased
		if t.err != nil {
			err = t.lostError()
		}
		sh.mu.Unlock()
		return err
	}
	renewal := driver.Renewal{Key: t.key(), Owner: ten.owner(), TTL: ten.lease, Asked: true}
	if ten.fixed || ten.stopped {
		renewal.TTL = 0
	}
	sent, ahead := l.clock.Read()
	sh.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, ten.lease/6)
	defer cancel()
	var failure error
	l.store.Renew(ctx, []driver.Renewal{renewal}, func(_ int, contended bool, err error) {
		failure = err
		l.dog.confirm(ten, renewed{sent, ahead, renewal.TTL > 0, contended, err}, false)
	})
	if failure != nil && !errors.Is(failure, ErrNotOwner) && !errors.Is(failure, ErrUnavailable) &&
		!errors.Is(failure, ErrKeyOccupied) {
		failure = fmt.Errorf("%w: %w", ErrUnavailable, failure)
	}
	if errors.Is(failure, ErrNotOwner) {
		return t.check(l.clock.Read())
	}
	return failure
}

// enter adds a hold to a turn of a lease that is on the caller's context. It
// reports whether there is a live turn to enter; an error says that there was
// one, and that it was lost.
func (t *turn) enter(now clock.Instant) (bool, error) {
	sh := t.entry.shard
	sh.mu.Lock()
	defer sh.mu.Unlock()
	switch {
	case t.err != nil && t.holds > 0:
		return false, t.lostError()
	case t.state != granted:
		return false, nil
	case now >= t.ten.deadline():
		// The watchdog is about to say so.
		return false, fmt.Errorf("%w: %q", ErrLost, t.key())
	}
	t.holds++
	return true, nil
}

// leave gives up one hold of a turn, and with the last one the lock: to the
// next waiter here, or to the store. It returns why the lock was lost if nobody
// knew that before.
func (l *Locker) leave(ctx context.Context, t *turn) (passed bool, lost *Loss, err error) {
	e := t.entry
	now, ahead := l.clock.Read() // before the mutex, which many may wait for
	e.shard.mu.Lock()
	t.holds--
	if t.err != nil && t.state == gone {
		err = t.lostError()
		last, cause := t.holds == 0, causeOfLoss(t.err)
		e.shard.mu.Unlock()
		if last {
			t.lease.end(cause) // who found it lost may not have come to that yet
			t.lease.over()
		}
		return false, nil, err
	}
	if t.holds > 0 {
		e.shard.mu.Unlock()
		return false, nil, nil
	}
	// The last hold. From here the renewals cannot touch the turn, and a loss
	// of the tenure is the next holder's.
	ten := t.ten
	t.state = gone
	if next, kept := ten.handOver(now, ahead); kept {
		if next == nil {
			e.shard.mu.Unlock()
			l.ended()
		} else {
			door := next.knock // the turn lets go of it once it is awake
			e.shard.mu.Unlock()
			wake(door, handed) // out here, for what it does first may need the mutex
		}
		t.lease.over()
		return true, nil, nil
	}
	known, expired := t.err != nil, now >= ten.deadline()
	if expired && !known {
		t.err = ErrLost // the watchdog was about to say so
	}
	e.retire(ten)
	e.releasing()
	waiter := ""
	if ten.contended && e.first != nil && !l.closed.Load() {
		waiter = l.id
	}
	e.shard.mu.Unlock()
	if expired && !known {
		t.lease.end(ErrLost)
	}
	t.lease.over()
	err = e.sendRelease(context.WithoutCancel(ctx), ten, waiter)
	l.ended()
	var reason LossReason
	switch {
	case errors.Is(err, ErrNotOwner):
		reason = lossOf(err)
		err = fmt.Errorf("%w: %q: %w", ErrLost, t.key(), err)
	case expired:
		// By our clock, whether the store still knew us or could not be asked.
		reason = LossUnavailable
		if ten.fixed {
			reason = LossExpired
		}
		over := fmt.Errorf("%w: %q: released after its deadline", ErrLost, t.key())
		if err != nil {
			over = fmt.Errorf("%w: %w", over, err)
		}
		err = over
	case err != nil:
		err = fmt.Errorf("interlock: releasing %q: %w", t.key(), err)
	}
	if reason != "" && !known { // else MaxHold came first, and was reported
		loss := t.loss(reason, nil)
		lost = &loss // the observer gets it with the release
		t.tellLost(loss)
	}
	return false, lost, err
}

// loseLocked ends a tenure that can no longer be trusted, at once: its holder's
// context ends, and the next waiter goes to the store with a fresh owner without
// waiting for the loser. It is called with the shard locked; what it returns is
// to be called after unlocking.
func (l *Locker) loseLocked(ten *tenure, reason LossReason, cause error) (report func()) {
	e := ten.entry
	if ten.over {
		return func() {} // released, or lost before
	}
	e.retire(ten)
	clean := func() {
		// It may be ours still in the store, until its TTL. Whoever comes next
		// should not have to wait for that. But it is released only after the
		// holder was told; and when the locker closes, never: the handler may
		// be at work.
		o := ten.orphan()
		switch {
		case reason == LossClosed:
			return
		case reason.denied() || ten.fixed || ten.stopped:
			// There is nothing to release, or the holder relies on the whole of
			// the lease, which the store ends later than we do. Only a try of the
			// acquire that is late has to be seen to, once that is over.
			if !ten.ambiguous {
				return
			}
			if !reason.denied() {
				o.from = ten.ends()
			}
		}
		l.reaper.add(o)
	}
	if e.try != nil {
		e.try.next = 0
	}
	e.poke()
	e.drop()
	t := ten.cur
	if t == nil {
		return clean
	}
	maxHeld := t.err != nil
	if !maxHeld {
		t.err = cause
	}
	t.state = gone
	lost, told := t.err, reason
	if maxHeld {
		told = "" // it has been reported
	}
	return func() {
		l.reportLoss(t, told, lost, ten.lastErr)
		clean()
		l.ended()
	}
}

// causeOfLoss is the cause with which the context of a lost lease ends.
func causeOfLoss(err error) error {
	if errors.Is(err, ErrNotOwner) {
		return ErrLost
	}
	return err
}

// reportLoss ends the lease's context and tells who wants to know.
func (l *Locker) reportLoss(t *turn, reason LossReason, cause, lastErr error) {
	cause = causeOfLoss(cause)
	// Before the handler hears of it: it may answer because of that.
	loss := t.loss(reason, lastErr)
	t.lease.end(cause)
	if reason == "" {
		return
	}
	if o := t.lease.obs; o != nil && o.Lost != nil {
		l.told("Observation.Lost", func() { o.Lost(loss) })
	}
	t.tellLost(loss)
}

// abandonAll ends what is still held when a drain is over. The keys stay: their
// handlers may be at work, and the TTL is what frees them.
func (l *Locker) abandonAll() {
	for i := range l.shards {
		sh := &l.shards[i]
		sh.mu.Lock()
		var reports []func()
		for _, e := range sh.entries {
			if e.ten != nil {
				reports = append(reports, l.loseLocked(e.ten, LossClosed, ErrClosed))
			}
		}
		sh.mu.Unlock()
		for _, report := range reports {
			report()
		}
	}
}
