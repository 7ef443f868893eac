package rediswire

import (
	"context"
	"time"
)

// hereAgain is for how long no caller sends by itself after a pipeline has failed or
// was interrupted: an interruption costs a connection, and a server that hangs would
// cost one for each caller that leaves.
const hereAgain = time.Second

// Do sends the request for the first time and waits for the outcome, as [Request.Start]
// and [Request.Wait] do. Where a pipeline is free, the caller's own goroutine sends the
// request and reads the reply, so that no other goroutine has to be woken: on a machine
// whose cores go to sleep between requests that takes longer than the server.
func (r *Request) Do(ctx context.Context, deadline time.Time) bool {
	r.begin()
	if r.route.unread() {
		go r.send() // finding the server takes requests of its own
	} else if q := r.prepare(); q != nil && !q.sendHere(ctx, deadline, r) {
		q.submit(r)
	}
	return r.Wait(ctx, deadline)
}

// sendHere sends a request on the goroutine of its caller, and tells it what has become of
// it. It reports false if no pipeline is free for that. When ctx ends or the limit is
// over, the connection is closed, and the outcome is unknown.
func (q *pipelines) sendHere(ctx context.Context, limit time.Time, r *Request) bool {
	p := q.lend(r, ctx.Done() == nil && limit.IsZero())
	if p == nil {
		return false
	}
	defer q.giveBack(p) // after link.end: nothing may break off the next use
	p.dismiss()
	if len(p.batch) > 0 {
		p.works = false // until its answers have come
		defer p.link.end(p.link.guard(ctx, limit))
		p.exec(ctx, q)
	}
	return true
}

// lend gives a caller a pipeline whose connection stands, with the caller's request to
// send. If nothing ends the sending early, what pipelines.add has queued goes along. It
// returns nil if there is none. The pipelines to the nodes of a quorum are not lent: they
// leave in an order in time (pipelines.patience).
func (q *pipelines) lend(r *Request, whole bool) *pipeline {
	q.mu.Lock()
	defer q.mu.Unlock()
	last := len(q.free) - 1
	if q.closed || q.patience > 0 || q.busy >= q.most || last < 0 || !q.free[last].works || len(q.queue) > 0 && !whole {
		return nil
	}
	if !q.notHere.IsZero() {
		if time.Now().Before(q.notHere) {
			return nil
		}
		q.notHere = time.Time{}
	}
	p := q.free[last]
	q.free = q.free[:last]
	q.busy++
	q.queue = append(q.queue, r)
	q.take(p)
	return p
}

// giveBack takes a pipeline back from a caller. What was queued meanwhile goes by it, on
// another goroutine.
func (q *pipelines) giveBack(p *pipeline) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if !p.works {
		q.notHere = time.Now().Add(hereAgain)
	}
	if len(q.queue) > 0 {
		q.hand(p)
		return
	}
	q.rests(p)
}
