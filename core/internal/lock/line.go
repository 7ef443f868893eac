package lock

import (
	"context"
	"time"

	"github.com/interlock-go/interlock/core/driver"
	"github.com/interlock-go/interlock/core/internal/clock"
)

// A caller that is Newest takes the place of the callers before it: the holder's context ends, and
// the callers that wait are refused. In the process that needs no store. Between processes the
// store numbers these callers, and refuses each caller once there is a higher number. A caller
// does not ask for a lock that its own process holds; it only announces itself to the store
// (stand).
//
// A notification only triggers a query (attention.go): a caller that waits asks again with its
// number, and for a holder the process asks with the holder's number. The answer ends the wait, or
// the context of the holder. If the notification is lost, a caller finds out within linePoll, and
// a holder at its next renewal.
//
// The hold of a caller that is Newest is not handed off: the store has to know which callers
// hold the lock.

// linePoll is after how long a caller that is not InTurn asks again whether it may wait. It
// is less than the time for which a store remembers the only waiter.
const linePoll = time.Second

// comes is the event that a caller comes that is Newest.
func (l *lock) comes(w *Waiter, fx *effects) {
	if l.phase == idle {
		l.phase = acquiring
	} else {
		w.marks |= waited
	}
	var next *Waiter
	for old := l.waiters.first; old != nil; old = next {
		if next = old.next; old.Terms.Line == driver.Newest {
			old.marks |= waited
			l.failOne(old, ErrSuperseded, fx)
		}
	}
	// Its requests may overtake those of the caller before it, which may have left: so they say which
	// of the two came later. It is set under the shard's mutex, in the order in which callers come.
	w.token = -int64(l.shard.table.owners.seq.Add(1)) //nolint:gosec // far below the greatest int64
	w.lock = l
	l.waiters.pushFirst(w)
	if l.acq != nil {
		l.acq.next.askAt = 0
	}
	if l.phase == held {
		l.own.supersede(fx)
	}
	if l.own != nil || l.places != nil {
		l.wanted(fx)
	}
}

// supersede has the holder told that a newer caller waits, if the holder is Newest.
func (own *ownership) supersede(fx *effects) {
	if w := own.holder; own.tokens.number != 0 && w.err == nil && w.marks&superseded == 0 {
		w.marks |= superseded
		fx.calls.superseded = w
	}
}

// outError is what a caller gets that must not wait.
func (w *Waiter) outError() error {
	w.marks |= waited
	if w.Terms.Line == driver.Newest {
		return ErrSuperseded
	}
	return queueFull(w)
}

// stands has a waiter ask the store whether it may wait, if that is due.
func (l *lock) stands(w *Waiter, now clock.Instant, fx *effects) (s step, due bool) {
	acq := l.acquisition()
	if now < acq.next.askAt {
		return s, false
	}
	acq.next.askAt = now.Add(linePoll)
	fx.asks = true
	number, order := w.number()
	return step{action: stand, line: driver.AcquireRequest{
		Key: l.key, TTL: w.Terms.Lease, Line: w.Terms.Line, Number: number, Order: order,
		Waiter: l.shard.table.name(driver.Exclusive, true),
	}}, true
}

// stand asks the store whether a waiter may wait. A store that does not answer is asked again.
func (t *Table) stand(ctx context.Context, w *Waiter, req driver.AcquireRequest, deadline clock.Instant) (s step) {
	ctx, cancel := context.WithTimeout(ctx, answerWait)
	defer cancel()
	rep, err := t.store.turns.Stand(ctx, req)
	now := t.Clock.Now()
	l := w.lock
	l.shard.event(l, func(fx *effects) {
		if err == nil {
			w.stood(rep, fx)
		}
		s = l.look(w, now, deadline, fx)
	})
	t.life.work.done()
	return s
}

// stood is the event that the store has said whether a waiter may wait.
func (w *Waiter) stood(rep driver.Reply, fx *effects) {
	l := w.lock
	switch {
	case w.state != waiting:
	case rep.Out:
		l.failOne(w, w.outError(), fx)
		if l.phase == acquiring {
			l.proceed(fx) // this process has released the lock meanwhile, and the next waiter has to ask
		} else if l.listing.in {
			l.declines(fx)
		}
	default:
		w.token, l.listing.in = rep.Number, l.listing.in || rep.Listed
	}
}

// askWhetherNewer asks the store whether a newer caller waits than the holder.
func (t *Table) askWhetherNewer(own *ownership) {
	ctx, cancel := context.WithTimeout(context.Background(), own.lease.length/6)
	defer cancel()
	rep, err := t.store.turns.Stand(ctx, driver.AcquireRequest{
		Key: own.lock.key, TTL: own.lease.length, Line: driver.Newest, Number: own.tokens.number,
	})
	if err != nil || !rep.Out {
		return // the next renewal asks again
	}
	own.lock.shard.event(own.lock, func(fx *effects) {
		if !own.over {
			own.supersede(fx)
		}
	})
}
