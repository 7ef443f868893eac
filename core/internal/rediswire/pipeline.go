package rediswire

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
)

const (
	// maxPipelines is how many pipelines to one server are under way at most. They do not
	// wait for one another: while the server works on one, their callers work on the
	// replies of another, and a slow one delays no other request.
	maxPipelines = 4
	// maxRenewing is the same for renewals.
	maxRenewing = 2
	// nodePatience is how long the last pipeline to a node of a quorum is under
	// way before the next one does not wait for it any more. An election gives up
	// a node before it has its vote; the two should arrive in that order, or the
	// vote stays until a later request finds it.
	nodePatience = time.Millisecond
	// pipelineLinger is how long a goroutine that sends stays when there is nothing
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
// leaves at once, on the goroutine of its caller if that waits for it
// ([pipelines.sendHere]). Goroutines send the others. They end when there was nothing
// to send for a while.
type pipelines struct {
	client   *redis.Client
	ack      ack
	standing atomic.Int32 // pipelines that work; kept for patience only
	keyspace *keyspace
	most     int // pipelines under way
	patience time.Duration
	bounded  bool // a pipeline ends with the last deadline of its requests

	mu     sync.Mutex
	queue  []*Request
	busy   int              // pipelines under way
	free   []*pipeline      // the others, the last used one last
	links  []*link          // of all
	idle   []chan *pipeline // goroutines that wait for a pipeline; nil ends one
	begun  time.Time        // when the last pipeline was sent; kept for patience only
	timer  *time.Timer
	armed  bool
	closed bool
	// retired says that the node has other pipelines now. The connections are closed
	// when no pipeline is under way any more.
	retired bool
	notHere time.Time // no caller sends by itself before; zero: they may
}

// pipeline is a connection, and what is needed to send a batch.
type pipeline struct {
	link  *link
	batch []*Request
	calls []call // the first n are for this batch
	n     int
	works bool // the last batch had its answers

	unwanted []*Request // that were taken out of the queue and are not sent
}

// submit queues requests, all of a call for one pipeline; Request.tried is
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
	if n := len(q.free); n > 0 {
		p := q.free[n-1]
		q.free = q.free[:n-1]
		q.hand(p)
		return
	}
	l := newLink(q.client, q.keyspace)
	q.links = append(q.links, l)
	q.hand(&pipeline{link: l})
}

// hand gives a pipeline to a goroutine, which sends what is queued. Called with q.mu
// held.
func (q *pipelines) hand(p *pipeline) {
	if n := len(q.idle); n > 0 {
		wake := q.idle[n-1]
		q.idle = q.idle[:n-1]
		wake <- p
		return
	}
	go q.run(p)
}

// rests takes back a pipeline that has nothing to send. Called with q.mu held.
func (q *pipelines) rests(p *pipeline) {
	q.busy--
	q.free = append(q.free, p)
	if q.busy == 0 && q.retired {
		go q.disconnect()
	}
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

// run sends what is queued by a pipeline, and by the next that it is handed, until it
// is handed none for a while.
func (q *pipelines) run(p *pipeline) {
	wake := make(chan *pipeline, 1) // holds the next once it is taken out of idle
	timer := time.NewTimer(pipelineLinger)
	defer timer.Stop()
	for p != nil {
		for p.stand(q); q.next(p, wake); p.stand(q) {
			p.dismiss()
			if len(p.batch) > 0 {
				p.exec(context.Background(), q)
				if len(p.batch) > 1 {
					// The callers that have their replies go first: their next requests
					// can leave together.
					runtime.Gosched()
				}
			}
		}
		p = q.rest(wake, timer)
	}
}

// next gives a pipeline what is queued. If there is nothing, it takes the pipeline back,
// and the goroutine waits for the next.
func (q *pipelines) next(p *pipeline, wake chan *pipeline) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.queue) > 0 {
		q.take(p)
		if len(p.batch) > 0 {
			q.begin()
		}
		q.dispatch() // what did not fit goes by another pipeline
		return true
	}
	q.rests(p)
	if q.closed {
		wake <- nil
	} else {
		q.idle = append(q.idle, wake)
	}
	return false
}

// rest waits for a pipeline to send by. It returns nil when the goroutine is to end.
func (q *pipelines) rest(wake chan *pipeline, timer *time.Timer) *pipeline {
	timer.Reset(pipelineLinger)
	select {
	case p := <-wake:
		return p
	case <-timer.C:
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if i := slices.Index(q.idle, wake); i >= 0 {
		q.idle = slices.Delete(q.idle, i, i+1)
		return nil
	}
	return <-wake // taken just now: the pipeline is there
}

// exec sends the batch and tells each request what has become of it.
func (p *pipeline) exec(ctx context.Context, q *pipelines) {
	ctx, cancel := q.bound(ctx, p)
	defer cancel()
	write := false
	p.n = 0
	together := q.keyspace.shared(len(p.batch))
	for _, r := range p.batch {
		p.add(r, together)
		write = write || r.Write
	}
	p.link.shares.Store(p.n < len(p.batch))
	p.link.pin(ctx)
	for i := range p.calls[:p.n] {
		p.calls[i].send(ctx, p.link.pipe)
	}
	var wait *redis.IntCmd
	if write {
		wait = q.ack.ask(ctx, p.link.pipe)
	}
	err := p.roundTrip(ctx)
	if err != nil {
		p.link.unpin() // some errors make go-redis give the connection up
	}
	q.standing.Add(-p.standing())
	p.works = err == nil || IsReply(err)
	q.standing.Add(p.standing())
	acked := q.ack.given(wait)
	for i := range p.calls[:p.n] {
		p.calls[i].ended(err, acked)
	}
	clear(p.batch)
}

// roundTrip sends the commands and reads their replies. go-redis takes the form of a reply
// for granted: another one makes it panic, and is an error here. It would otherwise come
// out of a caller's Lock, whose server may recover it, and leave the other requests of the
// batch without an outcome. go-redis has given the connection up by then.
func (p *pipeline) roundTrip(ctx context.Context) (err error) {
	defer func() {
		if why := recover(); why != nil {
			err = fmt.Errorf("%w: go-redis panicked: %v", ErrReply, why)
		}
	}()
	if p.link.pipe.Len() == 1 {
		// A pipeline of one is a command, and allocates more.
		p.link.pipe.Discard()
		return p.link.pinned.Process(ctx, &p.calls[0].first)
	}
	_, err = p.link.pipe.Exec(ctx)
	return err
}

// bound returns the context of a pipeline. The client's timeouts bound it, and for
// renewals the last of their deadlines; but not while it connects. A connection takes
// several round trips, and a connection that was given up with each renewal would never stand.
func (q *pipelines) bound(ctx context.Context, p *pipeline) (context.Context, context.CancelFunc) {
	if p.link.pinned == nil {
		return ctx, func() {}
	}
	var last time.Time
	for _, r := range p.batch {
		if !q.bounded || r.Deadline.IsZero() {
			return ctx, func() {}
		}
		if r.Deadline.After(last) {
			last = r.Deadline
		}
	}
	return context.WithDeadline(ctx, last)
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
	for _, wake := range q.idle {
		wake <- nil
	}
	q.idle = nil
	queued := q.queue
	q.queue = nil
	for _, r := range queued {
		go r.tried(errShut)
	}
}

// retire has the connections closed when they are no longer used.
func (q *pipelines) retire() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.retired = true
	if q.busy == 0 {
		go q.disconnect()
	}
}

// disconnect closes the connections. What is under way fails.
func (q *pipelines) disconnect() {
	q.mu.Lock()
	links := q.links
	q.mu.Unlock()
	for _, l := range links {
		_ = l.client.Close() // a closed one says so
	}
}
