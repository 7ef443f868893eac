package rediswire

import (
	"errors"
	"time"
)

// maxQueued is how many requests wait for a pipeline to one server at most: what a
// server works off in a tenth of a second or so. Only a server that hangs, or one
// that is asked for more than it can do, has so many; a request beyond it would
// have its answer long after its caller has left.
const maxQueued = 16384

var (
	// errFull is what becomes of a request that finds the queue full.
	errFull = errors.New("interlock: too many requests wait for this server")
	// errUnwanted is what becomes of a request that no caller waits for any more
	// when its turn comes.
	errUnwanted = errors.New("interlock: not sent, since its caller had left")
)

// unwanted reports whether a request that waits for a pipeline is to be finished
// instead of sent. A request that asks for something new is, once its caller has
// left: what it would take would have to be given up again. A release is, once its
// time is over: its caller then has it done later (the reaper of package core). All
// others are sent, however late: what has been carried out is better known.
func (r *Request) unwanted(now time.Time) bool {
	switch {
	case r.Asks && r.state.Load() == stateLeft && !r.detached:
		return true
	case r.Asks || r.Stubborn:
		return !r.Deadline.IsZero() && now.After(r.Deadline)
	}
	return false
}

// take moves the next requests from the queue to the batch of a pipeline. Those that
// are unwanted it moves to the pipeline's list of them. Called with q.mu held.
func (q *pipelines) take(p *pipeline) {
	now := time.Now()
	p.batch = p.batch[:0]
	n := 0
	for n < len(q.queue) && len(p.batch) < maxBatch {
		r := q.queue[n]
		n++
		if r.unwanted(now) {
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

// dismiss finishes the unwanted requests of a pipeline.
func (p *pipeline) dismiss() {
	for _, r := range p.unwanted {
		r.finish(errUnwanted)
	}
	clear(p.unwanted)
	if p.unwanted = p.unwanted[:0]; cap(p.unwanted) > maxBatch {
		p.unwanted = nil
	}
}
