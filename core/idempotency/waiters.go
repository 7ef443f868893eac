package idempotency

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/interlock-go/interlock/core"
)

// defaultWaiters bounds the duplicates of one key that wait at a time. Each keeps
// its connection, its goroutine and its body: 32 bodies of 1 MiB are 32 MiB for a
// key. A client that retries has one or two requests under way.
const defaultWaiters = 32

// MaxWaiters bounds how many duplicates of one request wait for its answer at a
// time ([WaitReplay]), in this process. One more is refused at once
// ([core.ReasonInFlight]). A duplicate that waits keeps its body in memory, up to
// [MaxRequest]. n is at least 1. Default: 32.
func MaxWaiters(n int) Option {
	return func(c *config) {
		if n < 1 {
			c.fail("MaxWaiters(%d): must be at least 1; WaitReplay(0) does not wait", n)
			return
		}
		c.maxWaiters = n
	}
}

// waiters counts, by record, the duplicates that wait.
type waiters struct {
	mu sync.Mutex
	n  map[string]int
}

// enter counts one in, unless limit are there.
func (w *waiters) enter(id string, limit int) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.n[id] >= limit {
		return false
	}
	if w.n == nil {
		w.n = make(map[string]int)
	}
	w.n[id]++
	return true
}

func (w *waiters) leave(id string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.n[id]--; w.n[id] == 0 {
		delete(w.n, id)
	}
}

// replayWait is the wait of one duplicate for the request in flight.
type replayWait struct {
	engine *Engine
	id     string
	over   time.Time
	woken  chan struct{} // nil: it has not begun
	stop   func()
}

// sleep waits until something may have changed: the request in flight is done, its
// lease is over, or the store could not tell. It returns false when the duplicate
// is to be answered with what is known: there is no more time, or too many wait. An
// error says that the client has gone.
func (r *replayWait) sleep(ctx context.Context, reply ClaimReply, asked time.Time) (again bool, err error) {
	now, k := time.Now(), r.engine.keeper
	if !now.Before(r.over) {
		return false, nil
	}
	if r.woken == nil {
		if !k.waiters.enter(r.id, r.engine.config.maxWaiters) {
			return false, nil
		}
		woken := make(chan struct{}, 1)
		r.woken = woken
		r.stop = k.store.Await(r.id, asked, func() {
			select {
			case woken <- struct{}{}:
			default:
			}
		})
	}
	nap := reply.Left + time.Millisecond
	if !reply.Listed {
		nap = min(nap, pollWait)
	}
	timer := time.NewTimer(min(nap, r.over.Sub(now)))
	defer timer.Stop()
	select {
	case <-r.woken:
	case <-timer.C:
	case <-ctx.Done():
		if errors.Is(ctx.Err(), context.DeadlineExceeded) {
			// The request in flight goes on: that is what this one is told.
			return false, nil
		}
		return false, fmt.Errorf("interlock: waiting for a request in flight: %w", context.Cause(ctx))
	}
	return true, nil
}

// end ends the wait, if it has begun.
func (r *replayWait) end() {
	if r.woken == nil {
		return
	}
	r.engine.keeper.waiters.leave(r.id)
	if r.stop != nil { // else Await panicked
		r.stop()
	}
}

// knows reports whether a duplicate that has waited, and gets no answer when it asks
// the store once more, is told what was known before: that a request is in flight.
// To tell it that nothing is known would be wrong, and a rule that fails open would
// run its handler beside the one in flight. A client that has gone is told nothing.
func (r *replayWait) knows(ctx context.Context) bool {
	return r.woken != nil && !errors.Is(ctx.Err(), context.Canceled)
}

// reasonOf is core.ReasonOf, except that here a store that does not answer is one
// of records, and so is one that did not answer within the request's own time: no
// lock was waited for.
func reasonOf(ctx context.Context, err error) core.Reason {
	if errors.Is(err, ErrDamaged) {
		return core.ReasonNoRecord
	}
	reason := core.ReasonOf(ctx, err)
	if reason == core.ReasonUnavailable || reason == core.ReasonDeadline {
		return core.ReasonNoRecord
	}
	return reason
}
