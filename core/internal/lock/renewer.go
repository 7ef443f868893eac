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

// renewer looks after all ownerships of a Table: it renews their leases when a third
// of the lease has passed, and ends those whose deadline has come, whether or not the
// store answers. What is due together is renewed together.
//
// An ownership enters in the same critical section in which its grant becomes
// visible and leaves in the one in which its release begins, so that no lease is
// ever without its renewer and no renewal starts after a release. One that is on
// its way then finds nothing: a renewal compares the owner.
//
// Lock order: a shard's mutex, then that of the events.
type renewer struct {
	table  *Table
	events timers.Scheduler[*ownership]
}

func (r *renewer) init(t *Table) {
	r.table = t
	r.events.Clock, r.events.Go, r.events.Serve = &t.Clock, t.work.Go, r.serve
}

// schedule puts an ownership at the time of its next event. Called with the mutex of
// its shard held.
func (r *renewer) schedule(own *ownership) {
	at, tolerance := own.nextEvent()
	r.events.Schedule(own, at, tolerance)
}

// cancel takes an ownership out. Called with the mutex of its shard held.
func (r *renewer) cancel(own *ownership) { r.events.Cancel(own) }

// stop ends all renewals.
func (r *renewer) stop() { r.events.Stop() }

// serve does what is due. Renewals go out on goroutines of their own, one for each
// length of lease, since each has its own bound: a store that hangs must not delay
// anything here.
func (r *renewer) serve(batch []*ownership, now clock.Instant) {
	renew := map[time.Duration][]*ownership{}
	for _, own := range batch {
		if r.look(own, now) {
			renew[own.lease] = append(renew[own.lease], own)
		}
	}
	for lease, some := range renew {
		r.table.work.Go(func() { r.renew(lease, some) })
	}
}

// look does what an ownership needs at this moment. It reports whether to renew the
// lease.
func (r *renewer) look(own *ownership, now clock.Instant) (renew bool) {
	l := own.lock
	sh := l.shard
	var fx effects
	sh.mu.Lock()
	renew = own.look(now, &fx)
	sh.apply(l, &fx)
	sh.mu.Unlock()
	r.table.run(l, &fx)
	return renew
}

// renew sends one batch. Each try is bounded by a sixth of the lease, so that two
// fit between the third of the lease at which it starts and the deadline, and one
// more.
func (r *renewer) renew(lease time.Duration, some []*ownership) {
	t := r.table
	batch := make([]driver.Renewal, len(some))
	// The owners are parts of one text, which costs less than one text for each.
	names, ends := make([]byte, 0, len(some)*(len(t.ID)+10)), make([]int, len(some))
	for i, own := range some {
		names = t.appendOwner(names, own.seq)
		ends[i] = len(names)
	}
	owners, from := string(names), 0
	for i, own := range some {
		batch[i] = driver.Renewal{Key: own.lock.key, Owner: owners[from:ends[i]], Kind: own.kind, TTL: own.lease}
		from = ends[i]
	}
	ctx, cancel := context.WithTimeout(context.Background(), lease/6)
	defer cancel()
	sent, ahead := t.Clock.Read()
	t.store.Renew(ctx, batch, func(i int, contended bool, err error) {
		t.renewed(some[i], renewal{
			sent: sent, ahead: ahead, scheduled: true, extended: true, contended: contended, err: err,
		})
	})
}

// renewed takes the outcome of a renewal.
func (t *Table) renewed(own *ownership, r renewal) {
	l := own.lock
	sh := l.shard
	var fx effects
	sh.mu.Lock()
	// Under the mutex: a success that waited for it past the deadline is late.
	now, ahead := t.Clock.Now(), time.Duration(0)
	if own.holder == nil {
		now, ahead = t.Clock.Read() // for a hand-off
	}
	var w *Waiter
	if own.renewed(r, now, ahead, &fx) && t.Observed && r.scheduled {
		w = own.holder
	}
	sh.apply(l, &fx)
	sh.mu.Unlock()
	t.run(l, &fx) // a loss comes first
	if w != nil {
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
	ctx, cancel := context.WithTimeout(ctx, own.lease/6)
	defer cancel()
	t.store.Renew(ctx, []driver.Renewal{req}, func(_ int, contended bool, err error) {
		r.contended, r.err = contended, err
		t.renewed(own, r)
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
	if !own.fixed && !own.stopped {
		req.TTL = own.lease
	}
	r.sent, r.ahead = t.Clock.Read()
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
		t.renewed(holders[i].own, renewal{
			sent: sent, ahead: ahead, fix: true, extended: true, contended: contended, err: err,
		})
	})
	return errs
}
