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
// try it takes two seconds at most by default. What is not done by then the reaper
// does.
const releaseWait = time.Second

// parting is what became of a hold that was given up.
type parting struct {
	effects
	over      bool       // it was the last one
	handedOff bool       // a waiter of this process has the lock, or will
	unsent    *ownership // its release is to be sent
	waiter    string     // the name that the release is to put at the end of the list
	expired   bool       // the deadline had come
	told      bool       // of a loss: before
	cause     error      // why the lease was lost
	err       error      // for the caller
}

// release is the event that a hold is given up.
func (w *Waiter) release(now clock.Instant, ahead time.Duration, p *parting) {
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
	l, own := w.lock, w.own
	w.state = gone
	switch {
	case own.kind.Place():
		if own.passOn(w, now, ahead, p) {
			return
		}
	case own.handOff(now, ahead, &p.effects):
		p.handedOff, p.ended = true, p.handed == nil
		return
	}
	p.told, p.expired = w.err != nil, now >= own.deadline()
	if p.expired && !p.told {
		w.err, p.cause = &ErrLost, ErrLost // the renewer was about to say so
	}
	l.beginRelease(own, &p.effects)
	p.unsent = own
	if p.expired && !own.kind.Place() {
		l.outlive(now, &p.effects)
		return
	}
	if own.contended && l.first != nil && !l.shard.table.closed.Load() {
		p.waiter = l.shard.table.names[l.first.Terms.Kind]
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
	var p parting
	now, ahead := t.Clock.Read() // before the mutex, which many may wait for
	l := w.lock
	l.shard.mu.Lock()
	w.release(now, ahead, &p)
	l.shard.apply(l, &p.effects)
	l.shard.mu.Unlock()
	t.run(l, &p.effects)
	if p.over {
		w.Holder.Over(p.cause)
	}
	if p.unsent == nil {
		return Released{HandedOff: p.handedOff, Err: p.err}
	}
	err := t.sendRelease(context.WithoutCancel(ctx), p.unsent, p.waiter)
	t.ended()
	r := p.released(w, err)
	if p.told {
		r.Lost = 0 // MaxHold came first
	}
	return r
}

// released says what the outcome of a release means for the caller.
func (p *parting) released(w *Waiter, err error) Released {
	key := w.lock.key
	switch {
	case errors.Is(err, driver.ErrNotOwner):
		return Released{Lost: reasonOf(err), Err: fmt.Errorf("%w: %q: %w", ErrLost, key, err)}
	case p.expired:
		// By our clock, whether the store still knew us or could not be asked.
		r := Released{Lost: Unavailable, Err: fmt.Errorf("%w: %q: released after its deadline", ErrLost, key)}
		if p.unsent.fixed {
			r.Lost = Expired
		}
		if err != nil {
			r.Err = fmt.Errorf("%w: %w", r.Err, err)
		}
		return r
	case errors.Is(err, driver.ErrNotReady):
		return Released{Err: fmt.Errorf("%w: releasing %q: %w", driver.ErrUnavailable, key, err)}
	case err != nil:
		return Released{Err: fmt.Errorf("interlock: releasing %q: %w", key, err)}
	}
	return Released{}
}

// sendRelease gives an ownership that is over back to the store. Unless it is empty,
// waiter is for the end of the list of waiting lockers.
func (t *Table) sendRelease(ctx context.Context, own *ownership, waiter string) error {
	l := own.lock
	sent := t.Clock.Now()
	req := driver.ReleaseRequest{
		Key: l.key, Owner: own.owner(), Kind: own.kind, AtMost: int(own.atMost),
		Token: own.token, TTL: own.lease, Remember: own.unknown(sent), Waiter: waiter,
		Deadline: t.Clock.Time(sent.Add(releaseWait)),
	}
	waiting, err := t.store.Release(ctx, req)
	t.answeredRelease(own, sent, waiter != "", waiting, err)
	return err
}

// answeredRelease takes the outcome of a release.
func (t *Table) answeredRelease(own *ownership, sent clock.Instant, listed bool, waiting string, err error) {
	l := own.lock
	sh := l.shard
	now := t.Clock.Now()
	var fx effects
	sh.mu.Lock()
	l.released(own, sent, now, listed, waiting, err, &fx)
	sh.apply(l, &fx)
	sh.mu.Unlock()
	t.run(l, &fx)
}

// Reenter adds a hold to that of w. It reports whether there is a hold to add one
// to; an error says that there was one, and that it was lost.
func (t *Table) Reenter(w *Waiter) (bool, error) {
	now := t.Clock.Now()
	sh := w.lock.shard
	sh.mu.Lock()
	defer sh.mu.Unlock()
	return w.reenter(now)
}

// Live reports whether w holds the lock, as far as is known.
func (t *Table) Live(w *Waiter) bool {
	sh := w.lock.shard
	sh.mu.Lock()
	defer sh.mu.Unlock()
	return w.state == granted && w.err == nil
}

// Deadline returns until when the lease of w is good without another renewal.
func (t *Table) Deadline(w *Waiter) clock.Instant {
	sh := w.lock.shard
	sh.mu.Lock()
	defer sh.mu.Unlock()
	return w.own.deadline()
}

// Check returns why the lease of w cannot be trusted at this moment, or nil. It
// takes what [clock.Clock.Read] returned.
func (t *Table) Check(w *Waiter, now clock.Instant, ahead time.Duration) error {
	sh := w.lock.shard
	var fx effects
	sh.mu.Lock()
	defer sh.mu.Unlock()
	err := w.check(now, ahead, &fx)
	if fx.schedule != nil {
		t.renewer.schedule(fx.schedule)
	}
	return err
}
