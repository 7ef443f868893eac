//go:build integration && long

package redisstore_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/interlock-go/interlock/core"
)

// Callers of several processes come as the newest, again and again. One holds the lock at a
// time, tokens grow, no lease is lost, and none waits for ever. When all have come, the last holds it.
func TestNewestCallersOfSeveralProcesses(t *testing.T) {
	t.Parallel()
	const sections, lockers, callers = 20_000, 4, 4
	w := alone(t)
	var inside, last atomic.Int64
	var ran, ended, refused atomic.Int32
	var all sync.WaitGroup
	for range lockers {
		l := w.locker(w.store(), core.OnLost(func(loss core.Loss) { t.Errorf("lost: %+v", loss) }))
		for i := range callers {
			all.Go(func() {
				for ran.Load() < sections && !t.Failed() {
					opts := []core.Option{core.Newest()}
					if i == 0 && rand.IntN(10) == 0 {
						opts = nil // in turn
					}
					ctx, cancel := context.WithTimeout(t.Context(), w.Patience())
					lease, err := l.Lock(ctx, "k", opts...)
					switch {
					case errors.Is(err, core.ErrSuperseded):
						refused.Add(1)
						<-time.After(time.Duration(rand.Int64N(int64(4 * time.Millisecond)))) // more would only be refused
					case opts == nil && ctx.Err() != nil: // the newest come before it for as long as they come
					case err != nil:
						t.Error(err)
					default:
						if inside.Add(1) != 1 {
							t.Error("two are inside")
						}
						if before := last.Swap(lease.Token()); before >= lease.Token() {
							t.Errorf("token %d after %d", lease.Token(), before)
						}
						ran.Add(1)
						select {
						case <-lease.Context().Done():
							ended.Add(1)
						case <-time.After(time.Duration(rand.Int64N(int64(time.Millisecond)))):
						}
						inside.Add(-1)
						if err := lease.Release(ctx); err != nil {
							t.Error(err)
						}
					}
					cancel()
				}
			})
		}
	}
	all.Wait()
	t.Logf("%d sections, %d ended by a newer caller, %d callers superseded while they waited", ran.Load(), ended.Load(), refused.Load())
	if ended.Load() == 0 || refused.Load() == 0 {
		t.Error("no caller was superseded")
	}
}
