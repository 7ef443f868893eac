package rediswire

import (
	"context"
	"time"
)

// Round is a batch of renewals: a request for each lease.
type Round struct {
	all   []renewal
	start []*Request    // those of all
	done  chan *Request // those of which the outcome is known; it has room for all
}

// renewal is the request for one lease, with room for its arguments.
type renewal struct {
	Request
	names [2]string // lock or record, owner or token
	ms    [2]int64
	room  [callArgs + 4]any
}

// NewRound makes a round of n renewals, over the connections that are for renewals.
func (s *Store) NewRound(ctx context.Context, n int) *Round { return s.newRound(ctx, &s.renewals, n) }

func (s *Store) newRound(ctx context.Context, w *route, n int) *Round {
	b, _ := s.rounds.Get().(*Round)
	if b == nil || cap(b.all) < n {
		b = &Round{all: make([]renewal, n), start: make([]*Request, n), done: make(chan *Request, n)}
	}
	b.all, b.start = b.all[:n], b.start[:n]
	deadline, _ := ctx.Deadline()
	for i := range b.all {
		r := &b.all[i].Request
		r.done = b.done
		r.Make(s, nil, "", b.all[i].room[:])
		r.route, r.index, r.Deadline, r.Asks, r.once = w, i, deadline, true, w.renews
		b.start[i] = r
	}
	return b
}

// Set says how one lease is renewed: by a script of one key, whose arguments are the
// owner and times.
func (b *Round) Set(i int, script *Script, key, owner string, times ...time.Duration) {
	r := &b.all[i]
	r.script, r.lock, r.names = script, key, [2]string{key, owner}
	r.Write = (script == renewScript || script == stayScript) && r.route.renews && r.route.ack.replicas > 0
	r.Keys(&r.names[0]).Args(&r.names[1])
	for j, d := range times {
		r.ms[j] = Milliseconds(d)
		r.Args(&r.ms[j])
	}
	if script == renewScript {
		r.common = len(times)
	}
}

// number gives the script another argument; there is one time before it.
func (r *renewal) number(n int64) {
	r.ms[1] = n
	r.Args(&r.ms[1])
	r.common = 0
}

// Run sends the requests and tells the outcome of each as soon as it is known. When
// ctx ends, the outcome of the others is [ErrNoAnswer]. The round is not to be used
// any more.
func (b *Round) Run(ctx context.Context, tell func(i int, r *Request)) {
	s := b.all[0].store
	if b.all[0].route.unread() {
		go submitAll(b.start) // finding the servers takes requests of its own
	} else {
		submitAll(b.start)
	}
	for left := len(b.all); left > 0; left-- {
		select {
		case r := <-b.done:
			tell(r.index, r)
			continue
		case <-ctx.Done():
		}
		b.leave(left, tell)
		return
	}
	for i := range b.all {
		r := &b.all[i]
		r.Request, r.names = Request{}, [2]string{} // it may be long until the next round
	}
	s.rounds.Put(b)
}

// leave ends a round of which so many outcomes have not been told.
func (b *Round) leave(left int, tell func(i int, r *Request)) {
	for i := range b.all {
		if r := &b.all[i].Request; r.state.CompareAndSwap(stateWaited, stateLeft) {
			tell(i, &Request{Err: ErrNoAnswer})
			left--
		}
	}
	for range left { // these have their outcomes, which come at once
		r := <-b.done
		tell(r.index, r)
	}
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
