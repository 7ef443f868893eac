package rediswire

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
)

const (
	// maxPipelines is how many pipelines to one server are under way at most. They do
	// not wait for one another: while the server works on one, their callers work
	// on the replies of another, and a slow one delays no other request.
	maxPipelines = 4
	// maxRenewing is the same for renewals.
	maxRenewing = 2
	// nodePatience is how long the last pipeline to a node of a quorum is under
	// way before the next one does not wait for it any more. An election gives up
	// a node before it has its vote; the two should arrive in that order, or the
	// vote stays until a later request finds it.
	nodePatience = time.Millisecond
	// pipelineLinger is how long the goroutine of a pipeline stays when there is nothing
	// to send. A fresh one for each request would spend a third of the time on
	// growing its stack.
	pipelineLinger = time.Second
	// maxBatch is the greatest number of requests in one pipeline.
	maxBatch = 512
	// maxShare is the greatest number of requests in one call of a script, during
	// which the server does nothing else: a fifth of a millisecond or so.
	maxShare = 32
)

// pipelines sends the requests of many goroutines to one server. Requests that come
// while all pipelines are under way wait in the queue, and go together with the next
// one. So under load requests share connections and system calls, and a lone request
// leaves at once. The goroutines end when there was nothing to send for a while.
type pipelines struct {
	client   *redis.Client
	ack      ack
	together *atomic.Bool // the store's
	most     int          // pipelines under way
	patience time.Duration
	bounded  bool // a pipeline ends with the last deadline of its requests

	mu     sync.Mutex
	queue  []*Request
	idle   []*pipeline // whose goroutines wait
	busy   int         // pipelines under way
	begun  time.Time   // when the last one sent its pipeline; kept for patience only
	timer  *time.Timer
	armed  bool
	closed bool
}

// pipeline is one of them: a goroutine, and what it needs to send a batch.
type pipeline struct {
	pipe  redis.Pipeliner
	batch []*Request
	calls []call // the first n are those of this batch
	n     int
	wake  chan struct{} // holds a token once the pipeline was taken out of idle

	unwanted []*Request // that were taken out of the queue and are not sent
}

// submit queues requests, those of one call for one pipeline; Request.tried is
// called when the outcome of each is known.
func (q *pipelines) submit(all ...*Request) {
	err := q.enqueue(all, true)
	switch {
	case err == nil:
	case errors.Is(err, errFull):
		all[0].finish(err)
	default:
		for _, r := range all {
			r.tried(err)
		}
	}
}

// add queues a request that leaves with the next one, or at the call of flush.
func (q *pipelines) add(r *Request) {
	if err := q.enqueue([]*Request{r}, false); err != nil {
		r.tried(err)
	}
}

// flush has a request of add sent that has not left yet. The time since it was
// added does not count for its deadline.
func (q *pipelines) flush(r *Request, added time.Time) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if slices.Contains(q.queue, r) {
		r.Deadline = r.Deadline.Add(time.Since(added))
		q.dispatch()
	}
}

// enqueue takes requests into the queue, to be sent now or with later ones.
func (q *pipelines) enqueue(all []*Request, now bool) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	switch {
	case q.closed:
		return errShut
	case len(all) == 1 && all[0].Asks && len(q.queue) >= maxQueued:
		return errFull
	}
	q.queue = append(q.queue, all...)
	if now {
		q.dispatch()
	}
	return nil
}

// dispatch opens a pipeline if one may be opened; else the next that is free looks, or
// the timer does. Called with q.mu held.
func (q *pipelines) dispatch() {
	if len(q.queue) == 0 || q.busy >= q.most || q.busy > 0 && q.waits() {
		return
	}
	q.busy++
	q.begin()
	if n := len(q.idle); n > 0 {
		p := q.idle[n-1]
		q.idle = q.idle[:n-1]
		p.wake <- struct{}{}
		return
	}
	go q.run(&pipeline{pipe: q.client.Pipeline(), wake: make(chan struct{}, 1)})
}

// begin notes that a pipeline leaves. Called with q.mu held.
func (q *pipelines) begin() {
	if q.patience > 0 {
		q.begun = time.Now()
	}
}

// waits reports whether the next pipeline has to wait for the last one, and if so
// arranges another look. Called with q.mu held.
func (q *pipelines) waits() bool {
	if q.patience == 0 {
		return false
	}
	left := q.patience - time.Since(q.begun)
	if left <= 0 {
		return false
	}
	if !q.armed {
		q.armed = true
		if q.timer == nil {
			q.timer = time.AfterFunc(left, q.late)
		} else {
			q.timer.Reset(left)
		}
	}
	return true
}

// late is called when the pipeline under way may have become slow.
func (q *pipelines) late() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.armed = false
	q.dispatch()
}

// run is a pipeline: it sends what is queued until nothing is for a while.
func (q *pipelines) run(p *pipeline) {
	timer := time.NewTimer(pipelineLinger)
	defer timer.Stop()
	for {
		switch q.next(p) {
		case ends:
			return
		case rests:
			if !q.rest(p, timer) {
				return
			}
		case sends:
			p.dismiss()
			if len(p.batch) > 0 {
				p.exec(q)
			}
		}
	}
}

// step is what a pipeline does next.
type step int

const (
	sends step = iota // what it has taken from the queue
	rests             // there is nothing to send
	ends              // nor will there be
)

// next gives a pipeline what is queued.
func (q *pipelines) next(p *pipeline) step {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.queue) > 0 {
		q.take(p)
		if len(p.batch) > 0 {
			q.begin()
		}
		q.dispatch() // what did not fit goes by another pipeline
		return sends
	}
	q.busy--
	if q.closed {
		return ends
	}
	q.idle = append(q.idle, p)
	return rests
}

// rest has an idle pipeline wait for more to send. It reports false when the
// pipeline is to end.
func (q *pipelines) rest(p *pipeline, timer *time.Timer) bool {
	timer.Reset(pipelineLinger)
	select {
	case <-p.wake:
		return true
	case <-timer.C:
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if i := slices.Index(q.idle, p); i >= 0 {
		q.idle = slices.Delete(q.idle, i, i+1)
		return false
	}
	<-p.wake // taken just now: the token is there, or close put it there
	return true
}

// exec sends the batch and tells each request what has become of it.
func (p *pipeline) exec(q *pipelines) {
	ctx, cancel := q.bound(p.batch)
	defer cancel()
	write := false
	p.n = 0
	for _, r := range p.batch {
		p.add(r, q.together.Load())
		write = write || r.Write
	}
	for i := range p.calls[:p.n] {
		p.calls[i].send(ctx, p.pipe)
	}
	var wait *redis.IntCmd
	if write {
		wait = q.ack.ask(ctx, p.pipe)
	}
	var err error
	if p.pipe.Len() == 1 {
		// A pipeline of one is a command, and allocates more.
		p.pipe.Discard()
		err = q.client.Process(ctx, &p.calls[0].first)
	} else {
		_, err = p.pipe.Exec(ctx)
	}
	acked := q.ack.given(wait)
	for i := range p.calls[:p.n] {
		p.calls[i].ended(q, err, acked)
	}
	clear(p.batch)
}

// bound returns the context of a pipeline. The client's timeouts bound it, and for
// renewals the last of their deadlines.
func (q *pipelines) bound(batch []*Request) (context.Context, context.CancelFunc) {
	var last time.Time
	for _, r := range batch {
		if !q.bounded || r.Deadline.IsZero() {
			return context.Background(), func() {}
		}
		if r.Deadline.After(last) {
			last = r.Deadline
		}
	}
	return context.WithDeadline(context.Background(), last)
}

// quiet reports whether there is nothing to send and no goroutine.
func (q *pipelines) quiet() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return len(q.queue) == 0 && len(q.idle) == 0 && q.busy == 0
}

// close lets requests that come now fail; those under way end by themselves.
func (q *pipelines) close() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.closed = true
	if q.timer != nil {
		q.timer.Stop()
	}
	for _, p := range q.idle {
		q.busy++ // the pipeline gives it back when it sees that it is to end
		p.wake <- struct{}{}
	}
	q.idle = nil
	queued := q.queue
	q.queue = nil
	for _, r := range queued {
		go r.tried(errShut)
	}
}
