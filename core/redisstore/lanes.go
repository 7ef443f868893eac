package redisstore

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
)

const (
	// maxLanes is how many pipelines to one server are under way at most. They do
	// not wait for one another: while the server works on one, their callers work
	// on the replies of another, and a slow one delays no other request.
	maxLanes = 4
	// nodePatience is how long the last pipeline to a node of a quorum is under
	// way before the next one does not wait for it any more. An election gives up
	// a node before it has its vote; the two should arrive in that order, or the
	// vote stays until a later request finds it.
	nodePatience = time.Millisecond
	// laneLinger is how long the goroutine of a lane stays when there is nothing
	// to send. A fresh one for each request would spend a third of the time on
	// growing its stack.
	laneLinger = time.Second
	// maxBatch is the greatest number of requests in one pipeline.
	maxBatch = 512
	// maxShare is the greatest number of requests in one call of a script, during
	// which the server does nothing else: a fifth of a millisecond or so.
	maxShare = 32
)

// lanes sends the requests of many goroutines to one server in shared
// pipelines: those that come while all pipelines are under way go together with
// the next one, so that connections and system calls are shared when there is
// load, and a lone request leaves at once. There is no goroutine when there was nothing
// to send for a while.
type lanes struct {
	client   *redis.Client
	ack      ack
	together *atomic.Bool // the store's
	patience time.Duration

	mu     sync.Mutex
	queue  []*request
	idle   []*lane   // whose goroutines wait
	busy   int       // lanes under way
	begun  time.Time // when the last one sent its pipeline; kept for patience only
	timer  *time.Timer
	armed  bool
	closed bool
}

// lane is what it takes to send a pipeline.
type lane struct {
	pipe  redis.Pipeliner
	batch []*request
	calls []call // the first n are those of this batch
	n     int
	wake  chan struct{} // holds a token once the lane was taken out of idle

	unwanted []*request // that were taken out of the queue and are not sent
}

// submit queues requests, those of one call for one pipeline; request.sent is
// called when the outcome of each is known.
func (q *lanes) submit(all ...*request) {
	q.mu.Lock()
	if q.closed {
		q.mu.Unlock()
		for _, r := range all {
			r.sent(errShut)
		}
		return
	}
	if len(all) == 1 && all[0].asks && len(q.queue) >= maxQueued {
		q.mu.Unlock()
		all[0].finish(errFull)
		return
	}
	q.queue = append(q.queue, all...)
	q.dispatch()
	q.mu.Unlock()
}

// dispatch opens a lane if one may be opened; else the next that is free looks, or
// the timer does. Called with q.mu held.
func (q *lanes) dispatch() {
	if len(q.queue) == 0 || q.busy >= maxLanes || q.busy > 0 && q.waits() {
		return
	}
	q.busy++
	q.begin()
	if n := len(q.idle); n > 0 {
		ln := q.idle[n-1]
		q.idle = q.idle[:n-1]
		ln.wake <- struct{}{}
		return
	}
	go q.run(&lane{pipe: q.client.Pipeline(), wake: make(chan struct{}, 1)})
}

// begin notes that a pipeline leaves. Called with q.mu held.
func (q *lanes) begin() {
	if q.patience > 0 {
		q.begun = time.Now()
	}
}

// waits reports whether the next pipeline has to wait for the last one, and if so
// arranges another look. Called with q.mu held.
func (q *lanes) waits() bool {
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
func (q *lanes) late() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.armed = false
	q.dispatch()
}

// rest has a lane wait for more to send. It reports false when the lane is to
// end. Called with q.mu held, returns without it.
func (q *lanes) rest(ln *lane, timer *time.Timer) bool {
	q.busy--
	if q.closed {
		q.mu.Unlock()
		return false
	}
	q.idle = append(q.idle, ln)
	q.mu.Unlock()
	timer.Reset(laneLinger)
	select {
	case <-ln.wake:
		return true
	case <-timer.C:
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if i := slices.Index(q.idle, ln); i >= 0 {
		q.idle = slices.Delete(q.idle, i, i+1)
		return false
	}
	<-ln.wake // taken just now: the token is there, or close put it there
	return true
}

// run is a lane: it sends what is queued until nothing is for a while.
func (q *lanes) run(ln *lane) {
	timer := time.NewTimer(laneLinger)
	defer timer.Stop()
	for {
		q.mu.Lock()
		if len(q.queue) == 0 {
			if q.rest(ln, timer) {
				continue
			}
			return
		}
		q.take(ln)
		if len(ln.batch) > 0 {
			q.begin()
		}
		q.dispatch() // what did not fit goes by another lane
		q.mu.Unlock()

		ln.dismiss()
		if len(ln.batch) > 0 {
			ln.exec(q)
		}
	}
}

// exec sends the batch and tells each request what has become of it.
func (ln *lane) exec(q *lanes) {
	ctx := context.Background() // bounded by the client's timeouts
	write := false
	ln.n = 0
	for _, r := range ln.batch {
		ln.add(r, q.together.Load())
		write = write || r.write
	}
	for i := range ln.calls[:ln.n] {
		c := &ln.calls[i]
		_ = ln.pipe.Process(ctx, c.command(ctx))
		if second := c.requests[0].second; second.StringSliceCmd != nil {
			_ = ln.pipe.Process(ctx, second)
		}
	}
	var wait *redis.IntCmd
	if write {
		wait = q.ack.ask(ctx, ln.pipe)
	}
	var err error
	if ln.pipe.Len() == 1 {
		// A pipeline of one is a command, and allocates more.
		ln.pipe.Discard()
		err = q.client.Process(ctx, ln.calls[0].cmd)
	} else {
		_, err = ln.pipe.Exec(ctx)
	}
	acked := q.ack.given(wait)
	for i := range ln.calls[:ln.n] {
		ln.calls[i].over(q, err, acked)
	}
	clear(ln.batch)
}

// call is a command and the requests that share it.
type call struct {
	requests []*request
	args     []any // room for the arguments of several
	cmd      command
}

// add finds a request a call: one that it can share, or a new one.
func (ln *lane) add(r *request, together bool) {
	if together && r.shares() {
		for i := ln.n - 1; i >= 0; i-- {
			c := &ln.calls[i]
			if first := c.requests[0]; len(c.requests) < maxShare && first.shares() && first.like(r) {
				c.requests = append(c.requests, r)
				return
			}
		}
	}
	if ln.n == len(ln.calls) {
		ln.calls = append(ln.calls, call{})
	}
	ln.calls[ln.n].requests = append(ln.calls[ln.n].requests[:0], r)
	ln.n++
}

// command makes the command of a call.
func (c *call) command(ctx context.Context) command {
	first := c.requests[0]
	if len(c.requests) == 1 {
		c.cmd = first.script.evalWith(ctx, first.full, first.nkeys, first.args)
		return c.cmd
	}
	own := callArgs + first.nkeys // where the arguments begin that are not keys
	c.args = append(c.args[:0], nil, nil, nil)
	for _, r := range c.requests {
		c.args = append(c.args, r.args[callArgs:own]...)
	}
	for _, r := range c.requests {
		c.args = append(c.args, r.args[own:]...)
	}
	c.cmd = first.script.evalWith(ctx, false, first.nkeys*len(c.requests), c.args)
	return c.cmd
}

// over tells the requests of a call what has become of it. err is what became of
// the whole pipeline.
func (c *call) over(q *lanes, err error, acked bool) {
	val, failure := outcome(c.cmd, err)
	c.cmd = command{}
	clear(c.args)
	n := len(c.requests)
	apart := n > 1 && parted(failure, q.together)
	for i, r := range c.requests {
		c.requests[i] = nil
		if apart {
			r.alone = true
			r.send()
			continue
		}
		r.unacked = r.write && !acked
		own := failure
		if r.val = nil; own == nil {
			r.val, own = r.script.part(val, i, n)
		}
		r.sent(own)
	}
}

// parted reports whether a call was refused as a whole, which may be because of one
// of its keys: its requests then go alone. If it was because its keys are of
// different slots, all do from now on: a client for one server leads to a node of a
// Cluster, or to a proxy before several.
func parted(failure error, together *atomic.Bool) bool {
	if fateOf(failure) != refused {
		return false
	}
	if ofSeveralSlots(failure) {
		together.Store(false)
	}
	return true
}

// outcome is what became of a command of a pipeline, of which err is what became
// as a whole.
func outcome(cmd command, err error) (any, error) {
	switch val, own := cmd.Val(), cmd.Err(); {
	case own != nil:
		return nil, own
	case err != nil && val == nil:
		return nil, err // a pipeline that failed before its commands
	default:
		return val, nil
	}
}

// part is the i-th of the n replies that a script returned in one. If the list has
// another length or comes from another script, the answer is unknown and the reply is
// nil.
func (s *script) part(val any, i, n int) (any, error) {
	if n == 1 {
		return val, nil
	}
	list, _ := val.([]any)
	if len(list) != 1+n || list[0] != any(s.several) {
		return nil, nil //nolint:nilnil // see above
	}
	if text, ok := list[1+i].(string); ok {
		return nil, refusal(text)
	}
	return list[1+i], nil
}

// refusal is an error of one request in a call of several, as a script sends it.
type refusal string

// RedisError implements redis.Error.
func (refusal) RedisError() {}

func (r refusal) Error() string { return string(r) }

// quiet reports whether there is nothing to send and no goroutine.
func (q *lanes) quiet() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return len(q.queue) == 0 && len(q.idle) == 0 && q.busy == 0
}

// close lets requests that come now fail; those under way end by themselves.
func (q *lanes) close() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.closed = true
	if q.timer != nil {
		q.timer.Stop()
	}
	for _, ln := range q.idle {
		q.busy++ // the lane gives it back when it sees that it is to end
		ln.wake <- struct{}{}
	}
	q.idle = nil
	queued := q.queue
	q.queue = nil
	for _, r := range queued {
		go r.sent(errShut)
	}
}
