package redisstore

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
func (r *request) unwanted(now time.Time) bool {
	switch {
	case r.asks && r.state.Load() == stateLeft && !r.detached:
		return true
	case r.asks || r.stubborn:
		return !r.deadline.IsZero() && now.After(r.deadline)
	}
	return false
}

// take moves the next requests from the queue to the batch of a lane. Those that
// are unwanted it moves to the lane's list of them. Called with q.mu held.
func (q *lanes) take(ln *lane) {
	now := time.Now()
	ln.batch = ln.batch[:0]
	n := 0
	for n < len(q.queue) && len(ln.batch) < maxBatch {
		r := q.queue[n]
		n++
		if r.unwanted(now) {
			ln.unwanted = append(ln.unwanted, r)
		} else {
			ln.batch = append(ln.batch, r)
		}
	}
	rest := copy(q.queue, q.queue[n:])
	clear(q.queue[rest:])
	if q.queue = q.queue[:rest]; rest == 0 && cap(q.queue) > maxBatch*maxLanes {
		q.queue = nil // as long as it was while the server hung
	}
}

// dismiss finishes the unwanted requests of a lane.
func (ln *lane) dismiss() {
	for _, r := range ln.unwanted {
		r.finish(errUnwanted)
	}
	clear(ln.unwanted)
	if ln.unwanted = ln.unwanted[:0]; cap(ln.unwanted) > maxBatch {
		ln.unwanted = nil
	}
}
