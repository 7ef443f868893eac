package redisstore

import (
	"context"
	"errors"
	"time"

	"github.com/interlock-go/interlock/core/driver"
	"github.com/interlock-go/interlock/core/idempotency"
)

// round is one call of [Store.Renew] or [Store.Extend]: a request for each lease.
type round struct {
	all   []renewal
	start []*request    // those of all
	done  chan *request // those of which the outcome is known; it has room for all
}

// renewal is the request for one lease, with room for its arguments.
type renewal struct {
	request
	text   [2]string // lock or record, owner or token
	ms     [2]int64
	values [7]any
}

// newRound makes a round of n renewals that go by a route.
func (s *Store) newRound(ctx context.Context, w *route, n int) *round {
	b, _ := s.rounds.Get().(*round)
	if b == nil || cap(b.all) < n {
		b = &round{all: make([]renewal, n), start: make([]*request, n), done: make(chan *request, n)}
		for i := range b.all {
			r := &b.all[i]
			r.values = [7]any{3: &r.text[0], 4: &r.text[1], 5: &r.ms[0], 6: &r.ms[1]}
		}
	}
	b.all, b.start = b.all[:n], b.start[:n]
	deadline, _ := ctx.Deadline()
	for i := range b.all {
		r := &b.all[i]
		r.request = request{
			store: s, route: w, index: i, done: b.done, deadline: deadline,
			asks: true, once: w.renews, write: w.ack.renewals && w.renews,
		}
		b.start[i] = &r.request
	}
	return b
}

// run sends the requests and tells the outcome of each as soon as it is known. When
// ctx ends, the outcome of the others is that there is none.
func (b *round) run(ctx context.Context, tell func(r *request)) {
	s := b.all[0].store
	if b.all[0].route.unread() {
		go submitAll(b.start) // finding the servers takes requests of its own
	} else {
		submitAll(b.start)
	}
	for left := len(b.all); left > 0; left-- {
		select {
		case r := <-b.done:
			tell(r)
			continue
		case <-ctx.Done():
		}
		b.leave(left, tell)
		return
	}
	for i := range b.all {
		r := &b.all[i]
		r.request, r.text = request{}, [2]string{} // it may be long until the next round
	}
	s.rounds.Put(b)
}

// leave ends a round of which so many outcomes have not been told.
func (b *round) leave(left int, tell func(r *request)) {
	for i := range b.all {
		if r := &b.all[i].request; r.state.CompareAndSwap(stateWaited, stateLeft) {
			tell(&request{store: r.store, index: i, err: errNoAnswer})
			left--
		}
	}
	for range left { // these have their outcomes, which come at once
		tell(<-b.done)
	}
}

// errNoAnswer is the outcome of a request whose caller has left.
var errNoAnswer = errors.New("no answer in time")

// submitAll sends requests of one route for the first time, those to one server
// together.
func submitAll(all []*request) {
	now := time.Now()
	for _, r := range all {
		r.first = now
	}
	if q := all[0].route.direct; q != nil {
		for _, r := range all {
			r.prepare()
		}
		q.submit(all...)
		return
	}
	byServer := map[*pipelines][]*request{}
	for _, r := range all {
		if q := r.prepare(); q != nil {
			byServer[q] = append(byServer[q], r)
		}
	}
	for q, some := range byServer {
		q.submit(some...)
	}
}

// Renew implements [driver.Store]. It renews leases on different servers in parallel,
// and leases on one server in pipelines.
func (s *Store) Renew(ctx context.Context, batch []driver.Renewal, done func(i int, contended bool, err error)) {
	if len(batch) == 0 {
		return
	}
	w := &s.renewals
	if batch[0].Asked {
		w = &s.requests
	}
	b := s.newRound(ctx, w, len(batch))
	for i := range batch {
		r := &b.all[i]
		r.text = [2]string{s.names.lock(batch[i].Key), batch[i].Owner}
		r.ms[0] = wholeMilliseconds(batch[i].TTL) // 0 only looks
		r.script, r.nkeys, r.args, r.lock = renewScript, 1, r.values[:6], r.text[0]
	}
	b.run(ctx, func(r *request) {
		contended, err := r.renewed()
		done(r.index, contended, err)
	})
}

// renewed reads what the script returned for a lease.
func (r *request) renewed() (contended bool, err error) {
	if r.err != nil {
		return false, wrap(r.err)
	}
	switch n, err := verdict(r.val, 2); {
	case err != nil:
		return false, wrap(err)
	case n <= 0:
		return false, notOwner(n)
	case r.unacked:
		return n == 2, driver.ErrNotReplicated
	default:
		return n == 2, nil
	}
}

// Extend implements [idempotency.Store]. As with locks, it renews leases on different
// servers in parallel and leases on one server in pipelines, on separate connections.
func (s *Store) Extend(ctx context.Context, batch []idempotency.Extension, done func(i int, err error)) {
	if len(batch) == 0 {
		return
	}
	b := s.newRound(ctx, &s.renewals, len(batch))
	for i := range batch {
		r := &b.all[i]
		r.text = [2]string{s.names.record(batch[i].ID), batch[i].Token}
		r.ms = [2]int64{wholeMilliseconds(batch[i].Lease), wholeMilliseconds(batch[i].Retention)}
		r.script, r.nkeys, r.args, r.lock, r.write = extendScript, 1, r.values[:], r.text[0], false
	}
	b.run(ctx, func(r *request) { done(r.index, r.extended()) })
}

// extended reads what the script returned for a claim.
func (r *request) extended() error {
	if r.err != nil {
		return wrapRecord(r.err)
	}
	switch r.val {
	case "lost":
		return driver.ErrNotOwner
	case "renewed", "done":
		return nil
	}
	return wrapRecord(errReply)
}
