package lock

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/interlock-go/interlock/core/driver"
	"github.com/interlock-go/interlock/core/internal/clock"
)

// releaseWait bounds for how long a release is tried again, so that with the last
// try it takes two seconds at most by default. After that the reaper releases.
const releaseWait = time.Second

// behindMost bounds the calls of [Table.Behind].
const behindMost = 256

// Parting is what became of a hold that was given up.
type Parting struct {
	over      bool          // it was the last one
	handedOff bool          // a waiter of this process has the lock, or will
	unsent    *ownership    // its release is to be sent
	waiter    driver.Waiter // the entry that the release is to put at the end of the list
	expired   bool          // the deadline had come
	told      bool          // of a loss: before
	cause     error         // why the lease was lost
	err       error         // for the caller
}

// release is the event that a hold is given up.
func (w *Waiter) release(now clock.Instant, ahead time.Duration, p *Parting, fx *effects) {
	w.holds--
	p.over = w.holds == 0
	if w.err != nil && w.state == gone {
		p.err, p.cause = w.lostError(), causeOfLoss(*w.err)
		return
	}
	if !p.over {
		return
	}
	// From here the renewals cannot touch the hold, and a loss of the ownership is
	// the next holder's.
	l, own, place := w.lock, w.own, w.own.kind.Place()
	w.state = gone
	switch {
	case place:
		if own.passOn(w, now, ahead, p, fx) {
			return
		}
	case l.waiters.first != nil && own.handOff(now, ahead, fx):
		p.handedOff, fx.ended = true, fx.wakes.handed == nil
		return
	}
	p.told, p.expired = w.err != nil, now >= own.lease.deadline()
	if p.expired && !p.told {
		w.err, p.cause = &ErrLost, ErrLost // the watchdog was about to say so
	}
	l.retire(own, true, fx)
	p.unsent = own
	if p.expired && !place {
		l.outlive(now, fx)
		return
	}
	if own.turn.contended && l.waiters.first != nil && !l.shard.table.life.closed.Load() {
		p.waiter = l.shard.table.name(l.waiters.first.Terms.Kind, true)
		if l.shard.table.calls.reached.Load() && l.waiters.first.Terms.takesOffers() {
			p.waiter = l.shard.table.owners.names.Load().offers
		}
	}
}

// Released says how a hold ended.
type Released struct {
	// HandedOff says that the lock stays in the process, for the next waiter.
	HandedOff bool
	// Lost, unless zero, says why the lease was lost, if that was not told before.
	Lost Reason
	// Err is for the caller.
	Err error
}

// Release gives up one hold, and with the last one the lock: to the next waiter of
// this process, or to the store. It uses only the values of ctx.
func (t *Table) Release(ctx context.Context, w *Waiter) Released {
	var p Parting
	t.Part(w, &p)
	return t.Send(ctx, w, &p)
}

// Part is the part of [Table.Release] that takes no request. [Table.Send] must follow.
func (t *Table) Part(w *Waiter, p *Parting) {
	now, ahead := t.Clock.Read() // before the mutex, which many may wait for
	w.lock.shard.event(w.lock, func(fx *effects) { w.release(now, ahead, p, fx) })
	if p.over {
		w.Holder.Over(p.cause)
	}
}

// Unsent reports whether [Table.Send] has a request to send.
func (p *Parting) Unsent() bool { return p.unsent != nil }

// Send gives the lock back to the store, unless it stays in the process, and returns what
// [Table.Release] returns.
func (t *Table) Send(ctx context.Context, w *Waiter, p *Parting) Released {
	if p.unsent == nil {
		return Released{HandedOff: p.handedOff, Err: p.err}
	}
	err := t.sendRelease(context.WithoutCancel(ctx), p.unsent, p.waiter)
	t.ended()
	if err == nil && !p.expired {
		return Released{}
	}
	r := p.result(w, err)
	if p.told {
		r.Lost = 0 // MaxHold came first
	}
	return r
}

// Behind runs f, which calls [Table.Send] for a caller that does not wait, on a new
// goroutine. [Table.Close] waits for f. While 256 such calls are under way, Behind does
// nothing and returns false: a store that does not answer keeps callers waiting, and not an
// unbounded number of goroutines.
func (t *Table) Behind(f func()) bool {
	if t.life.behind.Add(1) > behindMost {
		t.life.behind.Add(-1)
		return false
	}
	t.life.work.Go(func() {
		defer t.life.behind.Add(-1)
		f()
	})
	return true
}

// result returns the outcome of a release for a caller that came late, or after a release
// without success.
func (p *Parting) result(w *Waiter, err error) Released {
	key := w.lock.key
	switch {
	case errors.Is(err, driver.ErrNotOwner):
		return Released{Lost: reasonOf(err), Err: fmt.Errorf("%w: %q: %w", ErrLost, key, err)}
	case p.expired:
		// By our clock, whether the store still knew us or could not be asked.
		r := Released{Lost: Unavailable, Err: fmt.Errorf("%w: %q: %w", ErrLost, key, errDeadline)}
		if p.unsent.lease.fixed {
			r.Lost = Expired
		}
		if err != nil {
			r.Err = fmt.Errorf("%w: %w", r.Err, err)
		}
		return r
	case errors.Is(err, driver.ErrNotReady):
		return Released{Err: fmt.Errorf("%w: releasing %q: %w", driver.ErrUnavailable, key, err)}
	}
	return Released{Err: fmt.Errorf("interlock: releasing %q: %w", key, err)}
}

// sendRelease gives an ownership that has ended back to the store. Unless it is empty,
// waiter is for the end of the list of waiting lockers.
func (t *Table) sendRelease(ctx context.Context, own *ownership, waiter driver.Waiter) error {
	l := own.lock
	sent, ahead := t.Clock.Read()
	req := driver.ReleaseRequest{
		Key: l.key, Owner: t.owner(own.seq), Kind: own.kind, AtMost: int(own.atMost),
		Token: own.tokens.last, TTL: own.lease.length, Remember: own.unknown(sent), Waiter: waiter,
		Deadline: t.Clock.Time(sent.Add(releaseWait)),
	}
	found, err := t.store.Release(ctx, req)
	now := t.Clock.Now()
	l.shard.event(l, func(fx *effects) { l.released(own, sent, now, ahead, waiter != "", found, err, fx) })
	return err
}

// released is the event that a release, which was sent at the instant sent, has its
// outcome. ahead is how far the wall clock had run ahead by then, listed says that it has put
// this process at the end of the list of waiting lockers.
func (l *lock) released(
	own *ownership, sent, now clock.Instant, ahead time.Duration, listed bool, found driver.Waiting, err error, fx *effects,
) {
	if own.ambiguous || err != nil && !errors.Is(err, driver.ErrNotOwner) {
		// A try of the acquire or of the release may be on its way still.
		fx.sends.orphan = own.orphan(now)
	}
	l.listing.in = l.listing.in || listed && err == nil
	fx.listens = listed
	if own.kind.Place() {
		l.left(own, now, listed, fx)
		return
	}
	if l.own != own {
		return // its lease had ended before: it has been outlived
	}
	l.own = nil
	if found.Others > 0 {
		l.away.sees(found.Patience, l.shard.table.name(driver.Exclusive, true))
		if listed {
			l.away.begins(sent, found.Others)
			// The answer is of the execution that has released it: every later offer was minted after the
			// release was sent.
			l.acquisition().offer.anchor = anchor{own.tokens.last, sent, ahead}
		}
	}
	switch {
	case listed:
		acq := l.acquisition()
		acq.refusal.contended, acq.next.tryAt = true, acq.next.turn
		if acq.next.turn == 0 {
			acq.next.tryAt = now.Add(promised)
		}
	case l.acq != nil:
		l.acq.next.tryAt = 0 // the next caller here asks, and is listed
	}
	if l.acq != nil && l.acq.offer.pending.token != 0 {
		l.dealPending(now, fx)
	}
	if l.phase != held {
		l.proceed(fx)
	}
}
