package rediswire

import (
	"context"
	"errors"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
)

const (
	// maxPipelines is how many pipelines to one server may be under way, unless Config.Connections says
	// otherwise. They do not wait for one another: while the server works on one, their callers
	// work on the replies of another, and a slow one delays no other request.
	maxPipelines = 4
	// maxRenewing is how many pipelines of renewals to one server are under way at most.
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

// hereAgain is for how long no caller sends by itself after a pipeline has failed or
// was interrupted: an interruption costs a connection, and a server that hangs would
// cost one for each caller that leaves.
const hereAgain = time.Second

// maxQueued is how many requests wait for a pipeline to one server at most: a server
// carries out so many in a tenth of a second or so. Only a server that hangs or is
// overloaded has so many; a request beyond it would have its answer long after its
// caller has left.
const maxQueued = 16384

var (
	// errFull is what becomes of a request that finds the queue full.
	errFull = errors.New("interlock: too many requests wait for this server")
	// errUnwanted is what becomes of a request that no caller waits for any more
	// when its turn comes.
	errUnwanted = errors.New("interlock: not sent, since its caller had left")
)

// sendHere sends a request on the goroutine of its caller, and gives the request its
// outcome. It reports false if no pipeline is free for that. When ctx ends or the limit is
// over, the connection is closed, and the outcome is unknown.
func (q *pipelines) sendHere(ctx context.Context, limit time.Time, r *Request) bool {
	p := q.lend(r, ctx.Done() == nil && limit.IsZero())
	if p == nil {
		return false
	}
	defer q.giveBack(p) // after link.end: nothing may break off the next use
	if len(p.unwanted) > 0 {
		p.dismiss()
	}
	if len(p.batch) > 0 {
		p.works, p.mixed = false, false // until its answers have come
		defer p.link.end(p.link.begin(ctx, limit))
		p.exec(ctx, q)
	}
	return true
}

// lend gives a caller a pipeline with an open connection, and with the caller's request
// to send. If nothing ends the sending early, the requests queued by pipelines.add go
// along. It returns nil if there is no such pipeline. The pipelines to the nodes of a
// quorum are not lent: they leave in an order in time (pipelines.patience).
func (q *pipelines) lend(r *Request, whole bool) *pipeline {
	q.mu.Lock()
	defer q.mu.Unlock()
	last := len(q.free) - 1
	if q.closed || q.patience > 0 || q.busy >= q.most || last < 0 || len(q.queue) > 0 && !whole {
		return nil
	}
	p := q.free[last]
	if !p.works || p.mixed { // pipelines.gather may find several callers again
		return nil
	}
	if !q.notHere.IsZero() {
		if time.Now().Before(q.notHere) {
			return nil
		}
		q.notHere = time.Time{}
	}
	q.free = q.free[:last]
	q.busy++
	q.queue = append(q.queue, r)
	q.take(p)
	return p
}

// giveBack takes a pipeline back from a caller. If requests were queued meanwhile,
// another goroutine sends them by it.
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

// hand gives a pipeline to a goroutine, which sends the queued requests. Called with
// q.mu held.
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

// run sends the queued requests by a pipeline, and by the next that it is handed, until
// it is handed none for a while.
func (q *pipelines) run(p *pipeline) {
	wake := make(chan *pipeline, 1) // holds the next once it is taken out of idle
	timer := time.NewTimer(pipelineLinger)
	defer timer.Stop()
	for p != nil {
		for p.stand(q); q.next(p, wake); p.stand(q) {
			if len(p.unwanted) > 0 {
				p.dismiss()
			}
			if p.mixed = len(p.batch) > 1; len(p.batch) > 0 {
				p.exec(context.Background(), q)
			}
		}
		p = q.rest(wake, timer)
	}
}

// gather lets the callers go first that had their replies together: their next requests can
// leave together too. If the first of them left alone, the others would wait for its reply.
// Renewals come together, and wait for nobody.
func (q *pipelines) gather(p *pipeline) {
	if q.bounded || len(p.batch) < 2 {
		return
	}
	for range 2 { // after one, another processor can go on here before any of the callers
		q.mu.Lock()
		together := len(q.queue) >= len(p.batch)
		q.mu.Unlock()
		if together {
			return
		}
		runtime.Gosched()
	}
}

// next gives a pipeline the queued requests. If there are none, it takes the pipeline
// back, and the goroutine waits for the next.
func (q *pipelines) next(p *pipeline, wake chan *pipeline) bool {
	q.gather(p)
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

// take moves the next requests from the queue to the batch of a pipeline. Requests that are
// unwanted it moves to the pipeline's list of them: they are finished instead of sent. A
// request that asks for something new is unwanted once its caller has left: its lock would have
// to be given up again. So is a release once its time has passed: its caller then has it done
// later (the reaper of core/internal/lock). All others are sent, however late: a known outcome
// is better. Called with q.mu held.
func (q *pipelines) take(p *pipeline) {
	now := time.Now()
	p.batch = p.batch[:0]
	n := 0
	for n < len(q.queue) && len(p.batch) < maxBatch {
		r := q.queue[n]
		n++
		left := r.Asks && r.caller.Left() && !r.detached
		repeats := r.tries > 1 && r.tries <= r.Least
		if left || (r.Asks || r.Stubborn && !repeats) && !r.Deadline.IsZero() && now.After(r.Deadline) {
			p.unwanted = append(p.unwanted, r)
		} else {
			p.batch = append(p.batch, r)
		}
	}
	rest := copy(q.queue, q.queue[n:])
	clear(q.queue[rest:])
	if q.queue = q.queue[:rest]; rest == 0 && cap(q.queue) > maxBatch*maxPipelines {
		q.queue = nil // as long as it was while the server hung
	}
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
