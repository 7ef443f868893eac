package idempotency

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/interlock-go/interlock/core/idempotency/record"
)

// pollWait is the pause between looks at a record whose completion may not be
// announced.
const pollWait = time.Second

// defaultWaiters bounds the duplicates of one key that wait at a time. Each keeps
// its connection, its goroutine and its body: 32 bodies of 1 MiB are 32 MiB for a
// key. A client that retries has one or two requests under way.
const defaultWaiters = 32

// MaxWaiters bounds how many duplicates of one request wait for its answer at a
// time ([WaitReplay]), in this process. One more is refused at once
// ([reason.InFlight]). A duplicate that waits keeps its body in memory, up to
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

// add counts one more, unless limit are there.
func (w *waiters) add(id string, limit int) bool {
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

// remove counts one less.
func (w *waiters) remove(id string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.n[id]--; w.n[id] == 0 {
		delete(w.n, id)
	}
}

// waiter is a duplicate that waits for the request in flight.
type waiter struct {
	engine *Engine
	id     string
	until  time.Time
	woken  chan struct{} // nil: it has not begun
	cancel func()        // of Await
}

// sleep waits until something may have changed: the request in flight is done, its
// lease is over, or the store could not tell. It returns false when the duplicate
// is to be answered with what is known: there is no more time, or too many wait. An
// error says that the client has gone.
func (w *waiter) sleep(ctx context.Context, reply record.ClaimReply, asked time.Time) (again bool, err error) {
	now, e := time.Now(), w.engine
	if !now.Before(w.until) {
		return false, nil
	}
	if w.woken == nil {
		if !e.waiters.add(w.id, e.config.maxWaiters) {
			return false, nil
		}
		woken := make(chan struct{}, 1)
		w.woken = woken
		w.cancel = e.store.Await(w.id, asked, func() {
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
	timer := time.NewTimer(min(nap, w.until.Sub(now)))
	defer timer.Stop()
	select {
	case <-w.woken:
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

// stop ends the wait, if it has begun.
func (w *waiter) stop() {
	if w.woken == nil {
		return
	}
	w.engine.waiters.remove(w.id)
	if w.cancel != nil { // else Await panicked
		w.cancel()
	}
}

// knows reports whether a duplicate that has waited, and gets no answer when it asks
// the store once more, is told what was known before: that a request is in flight.
// To tell it that nothing is known would be wrong, and a rule that fails open would
// run its handler beside the one in flight. A client that has gone is told nothing.
func (w *waiter) knows(ctx context.Context) bool {
	return w.woken != nil && !errors.Is(ctx.Err(), context.Canceled)
}
