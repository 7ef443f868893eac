// Package worker calls what a user has handed over, an observer or the handler of a log,
// beside the goroutines that renew and end leases. Such a function may block: a log may
// lead into a pipe that no process reads.
package worker

import (
	"sync"
	"sync/atomic"
	"time"
)

// most is how many functions wait in a [Queue], unless its field Most says otherwise.
const most = 1 << 10

// Queue calls functions in their order on one goroutine, which exists while functions wait. It drops and counts functions beyond a bound. The zero value is ready. The owner
// sets the exported fields before the first call of a method. A Queue is safe for concurrent
// use.
type Queue struct {
	// Most is how many functions may wait; 0 is 1,024.
	Most int
	// Workers is how many functions may run at the same time; 0 is one. With more than one
	// they begin in their order.
	Workers int

	mu      sync.Mutex
	waiting []*call
	running int
	late    int // functions that have not returned, and for which a caller has waited in vain

	dropped atomic.Int64
}

// call is a function in a queue.
type call struct {
	f    func()
	done chan struct{} // closed when f has returned; nil: no caller waits
	late bool          // it counts in Queue.late
}

// Put has f called, and does not wait. It drops f if too many functions wait already.
func (q *Queue) Put(f func()) { q.put(&call{f: f}) }

// Await has f called, and waits for its return for the given time at most. It does not wait
// at all while an earlier function has not returned for which a caller waited in vain.
func (q *Queue) Await(f func(), wait time.Duration) {
	c := &call{f: f, done: make(chan struct{})}
	if !q.put(c) {
		return
	}
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-c.done:
		return
	case <-timer.C:
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	select {
	case <-c.done: // it has returned meanwhile, and counts as over
	default:
		c.late = true
		q.late++
	}
}

// Dropped returns how many functions were not called, or did not return because of a panic.
func (q *Queue) Dropped() int64 { return q.dropped.Load() }

// put adds a call, and reports whether the caller may wait for it.
func (q *Queue) put(c *call) (wait bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.running < max(q.Workers, 1) {
		q.running++
		go q.work(c)
		return q.late == 0
	}
	bound := q.Most
	if bound == 0 {
		bound = most
	}
	if len(q.waiting) >= bound {
		q.dropped.Add(1)
		return false
	}
	q.waiting = append(q.waiting, c)
	return q.late == 0
}

// work calls a function, and then the waiting ones.
func (q *Queue) work(c *call) {
	for c != nil {
		c = q.call(c)
	}
}

// call calls a function, and returns the next one; nil if none waits, and the goroutine of
// the caller ends. A panic of the function ends here: a function that is to be known by its
// panics recovers itself.
func (q *Queue) call(c *call) (next *call) {
	returned := false
	defer func() {
		panicked := !returned && recover() != nil
		if !returned {
			q.dropped.Add(1)
		}
		next = q.next(c)
		if !returned && !panicked && next != nil {
			go q.work(next) // runtime.Goexit ends this goroutine
		}
	}()
	c.f()
	returned = true
	return nil
}

// next notes that a call is over, and takes out the next one, if there is one.
func (q *Queue) next(c *call) *call {
	q.mu.Lock()
	defer q.mu.Unlock()
	if c.done != nil {
		close(c.done) // under the mutex: Await looks at it there
	}
	if c.late {
		q.late--
	}
	if len(q.waiting) == 0 {
		q.running--
		q.waiting = nil
		return nil
	}
	next := q.waiting[0]
	q.waiting[0] = nil
	q.waiting = q.waiting[1:]
	return next
}
