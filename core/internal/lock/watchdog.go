package lock

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/interlock-go/interlock/core/driver"
	"github.com/interlock-go/interlock/core/internal/clock"
	"github.com/interlock-go/interlock/core/internal/timers"
)

// watchdog looks after all ownerships of a Table: it renews each lease when a third of
// it has passed, and ends an ownership at its deadline, whether or not the store
// answers. Leases that are due together are renewed together.
//
// An ownership enters in the critical section that makes its grant visible, and leaves
// in the section that begins its release, so that no lease is ever without its watchdog
// and no renewal starts after a release. A renewal that is on its way then finds
// nothing: it compares the owner.
//
// Lock order: a shard's mutex, then the mutex of the events.
type watchdog struct {
	table  *Table
	events timers.Scheduler[*ownership]
}

func (r *watchdog) init(t *Table) {
	r.table = t
	r.events.Clock, r.events.Go, r.events.Serve = &t.Clock, t.life.work.Go, r.serve
}

// stop ends all renewals.
func (r *watchdog) stop() { r.events.Stop() }

// serve runs the work that is due. Renewals go out on separate goroutines, one for each
// length of lease, since each has its own bound: a store that hangs must not delay
// anything here.
func (r *watchdog) serve(batch []*ownership, now clock.Instant) {
	renew := map[term][]*ownership{}
	for _, own := range batch {
		renews, of := false, term{}
		own.lock.shard.event(own.lock, func(fx *effects) {
			if renews = own.due(now, fx); renews {
				of = own.term(now)
			}
		})
		if renews {
			renew[of] = append(renew[of], own)
		}
	}
	for of, some := range renew {
		r.table.life.work.Go(func() { r.renew(of, some) })
	}
}

// term has the common properties of the leases in a batch.
type term struct {
	lease  time.Duration
	within time.Duration // for the answer
	fixed  bool          // they are only looked at
	asked  bool          // callers have begun with offers, and rely on the renewal
}

// term notes a try to renew a lease. The first try for an offer goes by the connections of the
// callers' requests: a connection has brought an answer lately, else the offer could not have
// been taken, and a connection for renewals may have to be made, or have died in silence. The
// next try takes the other way.
func (own *ownership) term(now clock.Instant) term {
	of := term{lease: own.lease.length, fixed: own.lease.fixed, within: own.lease.within(now)}
	if own.lease.offered {
		own.renew.tries++
		of.asked = own.renew.tries%2 == 1
	}
	return of
}

// renew sends one batch.
func (r *watchdog) renew(of term, some []*ownership) {
	t := r.table
	batch := make([]driver.Renewal, len(some))
	// The owners are parts of one text, which costs less than one text for each.
	names, ends := make([]byte, 0, len(some)*(len(t.ID)+10)), make([]int, len(some))
	for i, own := range some {
		names = t.appendOwner(names, own.seq)
		ends[i] = len(names)
	}
	owners, from, ttl := string(names), 0, of.lease
	if of.fixed {
		ttl = 0
	}
	for i, own := range some {
		batch[i] = driver.Renewal{Key: own.lock.key, Owner: owners[from:ends[i]], Kind: own.kind, TTL: ttl, Asked: of.asked}
		from = ends[i]
	}
	ctx, cancel := context.WithTimeout(context.Background(), of.within)
	defer cancel()
	sent, ahead := t.Clock.Read()
	t.store.Renew(ctx, batch, func(i int, contended bool, err error) {
		t.noteRenewal(some[i], renewal{
			sent: sent, ahead: ahead, scheduled: true, extended: !of.fixed, contended: contended, err: err,
		})
	})
}

// noteRenewal takes the outcome of a renewal.
func (t *Table) noteRenewal(own *ownership, r renewal) {
	var now clock.Instant
	var w *Waiter
	own.lock.shard.event(own.lock, func(fx *effects) {
		// Under the mutex: a success that waited for it past the deadline is late.
		ahead := time.Duration(0)
		if now = t.Clock.Now(); own.holder == nil {
			now, ahead = t.Clock.Read() // for a hand-off
		}
		if own.renewed(r, now, ahead, fx) && t.Hooks.Observed && r.scheduled && r.extended {
			w = own.holder
		}
	})
	if w != nil { // after a loss
		w.Holder.Renewed(w, r.err, now.Sub(r.sent))
	}
}

// Confirm asks the store whether w still holds the lock, and renews the lease unless
// it is fixed. It waits for the store for at most a sixth of the lease.
func (t *Table) Confirm(ctx context.Context, w *Waiter) error {
	req, r, err := t.question(w)
	if err != nil {
		return err
	}
	own := w.own
	ctx, cancel := context.WithTimeout(ctx, r.within)
	defer cancel()
	t.store.Renew(ctx, []driver.Renewal{req}, func(_ int, contended bool, err error) {
		r.contended, r.err = contended, err
		t.noteRenewal(own, r)
	})
	switch err := r.err; {
	case errors.Is(err, driver.ErrNotOwner):
		now, ahead := t.Clock.Read()
		return t.Check(w, now, ahead)
	case err == nil, errors.Is(err, driver.ErrUnavailable), errors.Is(err, driver.ErrKeyOccupied), errors.Is(err, driver.ErrConfig):
		return err
	default:
		return fmt.Errorf("%w: %w", driver.ErrUnavailable, err)
	}
}

// question makes the renewal that asks whether w still holds the lock.
func (t *Table) question(w *Waiter) (req driver.Renewal, r renewal, err error) {
	sh := w.lock.shard
	sh.mu.Lock()
	defer sh.mu.Unlock()
	switch {
	case w.state == granted:
	case w.err != nil:
		return req, r, w.lostError()
	default:
		return req, r, ErrReleased
	}
	own := w.own
	req = driver.Renewal{Key: w.lock.key, Owner: own.owner(), Kind: own.kind, Asked: true}
	if !own.lease.fixed && !own.stopped {
		req.TTL = own.lease.length
	}
	r.sent, r.ahead = t.Clock.Read()
	r.within = own.lease.within(r.sent)
	r.extended = req.TTL > 0
	return req, r, nil
}

// Fix turns the leases of some holders into fixed ones, each with its whole ttl from
// now. It returns an error for each.
func (t *Table) Fix(ctx context.Context, holders []*Waiter, ttl time.Duration) []error {
	batch := make([]driver.Renewal, len(holders))
	for i, w := range holders {
		batch[i] = driver.Renewal{Key: w.lock.key, Owner: w.own.owner(), Kind: w.own.kind, TTL: ttl, Asked: true}
	}
	ctx, cancel := context.WithTimeout(ctx, ttl/6)
	defer cancel()
	errs := make([]error, len(holders))
	sent, ahead := t.Clock.Read()
	t.store.Renew(ctx, batch, func(i int, contended bool, err error) {
		errs[i] = err
		t.noteRenewal(holders[i].own, renewal{
			sent: sent, ahead: ahead, fix: true, extended: true, contended: contended, err: err,
		})
	})
	return errs
}

// due is the event that the next event of an ownership may be due. It reports
// whether the lease is to be renewed.
func (own *ownership) due(now clock.Instant, fx *effects) (renew bool) {
	if own.over {
		return false // released after the scheduler took it out
	}
	if now >= own.lease.deadline() {
		own.expire(now, fx)
		return false
	}
	if own.bound != 0 && now >= own.bound {
		own.endBounded(now, fx)
	}
	switch due := !own.lease.fixed && !own.stopped && own.renew.at <= now.Add(own.lease.slack()); {
	case (due || own.renew.hint != 0) && !own.renew.underway:
		// If it succeeds, that is when the next one is due. A hint that comes from here on may
		// have a cause that it does not see.
		renew, own.renew.underway, own.renew.at, own.renew.hint = true, true, now.Add(own.lease.length/3), 0
	case due:
		own.renew.at = clock.Never // the one under way decides, or the deadline
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
			if w.Terms.MaxHold > 0 {
				own.noteBound(w)
			}
		}
	}
}

// renewal is the outcome of a renewal, or of a question whether the lock is held.
type renewal struct {
	sent      clock.Instant
	ahead     time.Duration // of the wall clock, when it was sent
	within    time.Duration // of a question: for how long its caller waits
	scheduled bool          // the watchdog sent it
	fix       bool          // if it succeeds, the lease is not renewed any more
	extended  bool          // it was not only a question
	contended bool          // other processes wait
	err       error
}

// renewed is the event that a renewal has its outcome. It reports whether that
// meant anything: a success that comes after the release or the loss does not.
func (own *ownership) renewed(r renewal, now clock.Instant, ahead time.Duration, fx *effects) bool {
	if r.scheduled {
		own.renew.underway = false
		if own.renew.hint != 0 && !own.over {
			fx.schedule = own // it came while this one was on its way
		}
	}
	if r.fix && r.err == nil {
		own.lease.fixed = true
	}
	if own.over {
		return false
	}
	switch {
	case errors.Is(r.err, driver.ErrNotOwner):
		own.failed(r.err)
		own.lose(reasonOf(r.err), driver.ErrNotOwner, now, fx)
	case now >= own.lease.deadline():
		own.expire(now, fx)
	case r.err != nil:
		// Not a loss: the lease is good until its deadline. Again soon, but not later
		// than it was to be: a caller that asks again and again must not put it off.
		own.failed(r.err)
		pause := min(own.lease.length/20, time.Second)
		if own.lease.offered {
			pause = min(pause, leastOffer/30)
		}
		own.renew.at = min(own.renew.at, now.Add(pause))
		fx.schedule = own
	default:
		own.confirmed(r, now, ahead, fx)
	}
	return true
}

// failed notes why a renewal failed.
func (own *ownership) failed(err error) { own.renew.failed = &err }

// lastError is why the last renewal failed; nil if it did not.
func (own *ownership) lastError() error {
	if own.renew.failed == nil {
		return nil
	}
	return *own.renew.failed
}

// confirmed notes that the store has said that the lock is ours.
func (own *ownership) confirmed(r renewal, now clock.Instant, ahead time.Duration, fx *effects) {
	if r.extended && r.sent > own.lease.sent {
		own.lease.sent, own.lease.offered = r.sent, false
	}
	if r.scheduled && r.extended {
		own.renew.confirmed++
	}
	own.renew.failed, own.lease.ahead = nil, r.ahead
	own.turn.asked, own.turn.contended = false, r.contended
	if r.contended {
		own.wanted(fx)
		if own.tokens.number != 0 && own.holder != nil && own.holder.marks&superseded == 0 {
			fx.sends.question = own
		}
	} else {
		// No other process waits: the turn of this process begins anew.
		own.turn.began, own.turn.grants = r.sent, 0
	}
	// A renewal that is scheduled for about then is left as it is.
	if due := own.lease.sent.Add(own.lease.length / 3); due < own.renew.at || due > own.renew.at.Add(own.lease.slack()) || own.lease.fixed {
		own.renew.at = due
		fx.schedule = own
	}
	if own.holder != nil {
		return
	}
	if own.lock.waiters.first == nil || !own.handOff(now, ahead, fx) {
		own.lock.giveUp(own, fx)
	}
	if fx.wakes.handed != nil {
		fx.more++
	}
}

// expire ends a lease at its deadline.
func (own *ownership) expire(now clock.Instant, fx *effects) {
	reason := Unavailable
	if own.lease.fixed {
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
	l.retire(own, false, fx)
	fx.sends.orphan = own.leftInStore(reason, now)
	if l.acq != nil {
		l.acq.next.tryAt = 0
	}
	switch {
	case !own.kind.Place():
		l.proceed(fx)
	case l.phase == acquiring && l.asking() == 0:
		fx.wakes.look = l.waiters.first
	}
	for w := own.holder; w != nil; {
		next := w.next
		w.prev, w.next = nil, nil
		why := reason
		if w.err != nil {
			why = 0 // MaxHold, which was reported
		} else {
			w.err = &cause
		}
		w.state = gone
		fx.lost(&loss{holder: w, reason: why, cause: causeOfLoss(*w.err), err: own.lastError(), ended: true})
		w = next
	}
}

// leftInStore is the owner for the reaper to release after a loss, if any. The lock may
// be ours still in the store, until its TTL, and the next caller should not have to
// wait for that. But it is released only after the holder was notified; and when the
// locker closes, never: the handler may be at work.
func (own *ownership) leftInStore(reason Reason, now clock.Instant) *orphan {
	switch {
	case reason == Closed:
		return nil
	case !reason.denied() && !own.lease.fixed && !own.stopped:
		return own.orphan(now)
	case !own.ambiguous:
		// There is nothing to release, or the holder relies on the whole of the
		// lease, which the store ends later than we do.
		return nil
	}
	// A late try of the acquire has to be seen to, once the lease has ended.
	o := own.orphan(now)
	if !reason.denied() {
		o.from = own.ends()
	}
	return o
}
