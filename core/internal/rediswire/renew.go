package rediswire

import (
	"context"
	"time"

	"github.com/interlock-go/interlock/core/internal/clock"
)

// Renewal is the request for one lease of a round, with room for its arguments.
type Renewal struct {
	Request
	lease int       // its place in the round
	names [2]string // lock or record, owner or token
	ms    [2]int64
	room  [callArgs + 4]any
}

// round has the renewals of some leases under way. A round of many leases uses a
// renewal again as soon as its outcome was reported: the fewer there are, the more of
// them the processor's cache keeps.
type round struct {
	all  []Renewal
	free []*Renewal    // the renewals that are not under way
	next []*Request    // room for requests that are sent together
	done chan *Request // requests with an outcome; it has room for all
}

// newRound makes a round for n leases. A single server is sent no more at a time than
// fills its pipelines. The servers of a Cluster are sent everything at once: a server that
// hangs must not keep the leases of others waiting.
func (s *Store) newRound(w *route, n int) *round {
	if w.direct != nil {
		n = min(n, w.most*maxBatch)
	}
	b, _ := s.rounds.Get().(*round)
	if b == nil || cap(b.all) < n {
		b = &round{all: make([]Renewal, n), next: make([]*Request, n), done: make(chan *Request, n)}
	}
	b.all, b.free = b.all[:n], b.free[:0]
	for i := range b.all {
		b.free = append(b.free, &b.all[n-1-i])
	}
	return b
}

// Round renews n leases over the connections that are for renewals. It has ask fill in
// the renewal of each, and tells the outcome of each as soon as it is known, both from
// this goroutine. When ctx ends, the outcome of the others is [ErrNoAnswer].
func (s *Store) Round(ctx context.Context, n int, ask func(i int, r *Renewal), tell func(i int, r *Request)) {
	s.round(ctx, &s.renewals, n, ask, tell)
}

func (s *Store) round(ctx context.Context, w *route, n int, ask func(i int, r *Renewal), tell func(i int, r *Request)) {
	b := s.newRound(w, n)
	for sent, told := 0, 0; told < n; {
		if batch := min(maxBatch, n-sent); batch > 0 && len(b.free) >= batch {
			from := sent
			sent += min(len(b.free), n-sent)
			b.send(ctx, w, from, sent, ask)
		}
		select {
		case r := <-b.done:
			told++
			b.tell(r, tell)
		case <-ctx.Done():
			b.leave(tell)
			for i := sent; i < n; i++ {
				tell(i, &Request{Err: ErrNoAnswer})
			}
			return
		}
		for range len(b.done) { // the outcomes of a pipeline come together
			told++
			b.tell(<-b.done, tell)
		}
	}
	for i := range b.all {
		r := &b.all[i]
		r.Request, r.names = Request{}, [2]string{} // it may be long until the next round
	}
	s.rounds.Put(b)
}

// send sends the renewals of the leases from one to another.
func (b *round) send(ctx context.Context, w *route, from, to int, ask func(i int, r *Renewal)) {
	deadline, _ := ctx.Deadline()
	batch := b.next[:0]
	for i := from; i < to; i++ {
		last := len(b.free) - 1
		r := b.free[last]
		b.free = b.free[:last]
		r.done = b.done
		r.Make(w.store, nil, "", r.room[:])
		r.lease, r.renewal = i, r
		r.route, r.Deadline, r.Asks, r.once = w, deadline, true, w.renews
		ask(i, r)
		batch = append(batch, &r.Request)
	}
	if w.direct == nil && w.unread() {
		go submitAll(batch) // finding the servers takes further requests
	} else {
		submitAll(batch)
	}
}

// tell tells the outcome of a renewal, which is free from then on.
func (b *round) tell(r *Request, tell func(i int, r *Request)) {
	tell(r.renewal.lease, r)
	b.free = append(b.free, r.renewal)
}

// leave ends a round when its time has come: it reports the outcome of all renewals
// under way. The round is not to be used any more.
func (b *round) leave(tell func(i int, r *Request)) {
	left := len(b.all) - len(b.free)
	for _, r := range b.free {
		r.caller.Serve()
	}
	for i := range b.all {
		if r := &b.all[i]; r.caller.Leave() {
			tell(r.lease, &Request{Err: ErrNoAnswer})
			left--
		}
	}
	for range left { // these have their outcomes, which come at once
		b.tell(<-b.done, tell)
	}
}

// Ask says how the lease is renewed: by a script of one key, with the owner and times
// as arguments.
func (r *Renewal) Ask(script *Script, key, owner string, times ...time.Duration) {
	r.script, r.lock, r.names = script, key, [2]string{key, owner}
	r.Write = (script == renewScript || script == stayScript) && r.route.renews && r.route.ack.replicas > 0
	r.Keys(&r.names[0]).Args(&r.names[1])
	for j, d := range times {
		r.ms[j] = clock.Ceil(d, time.Millisecond)
		r.Args(&r.ms[j])
	}
	if script == renewScript {
		r.common = len(times)
	}
}

// number gives the script another argument; there is one time before it.
func (r *Renewal) number(n int64) {
	r.ms[1] = n
	r.Args(&r.ms[1])
	r.common = 0
}

// submitAll sends requests of one route for the first time, those to one server
// together.
func submitAll(all []*Request) {
	now := time.Now()
	for _, r := range all {
		r.Sent = now
	}
	if q := all[0].route.direct; q != nil {
		for _, r := range all {
			r.prepare()
		}
		q.submit(all...)
		return
	}
	byServer := map[*pipelines][]*Request{}
	for _, r := range all {
		if q := r.prepare(); q != nil {
			byServer[q] = append(byServer[q], r)
		}
	}
	for q, some := range byServer {
		q.submit(some...)
	}
}
