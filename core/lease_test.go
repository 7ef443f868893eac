package core_test

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
	"unsafe"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/memstore"
	"github.com/interlock-go/interlock/core/observe"
)

// Calls of Release at the same time wait for the first of them.
func TestCallsOfReleaseAtOnceReturnWhatTheFirstDoes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStore()
		l := newLocker(t, s)
		lease := held(t, l, t.Context(), "k")
		s.Take("k", time.Hour)
		s.Intercept(always(memstore.Fault{After: 100 * time.Millisecond}))
		var back atomic.Int32
		results := make(chan error, 4)
		for range cap(results) {
			go func() {
				err := lease.Release(t.Context())
				back.Add(1)
				results <- err
			}()
		}
		time.Sleep(50 * time.Millisecond)
		if n := back.Load(); n != 0 {
			t.Errorf("%d calls have returned before the store's answer", n)
		}
		wantErr(t, lease.Err(), core.ErrReleased)
		for range cap(results) {
			wantErr(t, <-results, core.ErrLost)
		}
		wantErr(t, lease.Release(t.Context()), core.ErrLost)
		if n := s.count(memstore.Release); n != 1 {
			t.Errorf("%d requests to release, want 1", n)
		}
	})
}

// startFunc is an Observer.
type startFunc func(ctx context.Context) observe.Observation

func (f startFunc) Start(ctx context.Context, _ observe.Operation) (context.Context, observe.Observation) {
	return ctx, f(ctx)
}

// The observer may release the lease in the callback that reports its release.
func TestAnObserverMayReleaseALeaseThatIsReleased(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStore()
		var lease *core.Lease
		again := core.ErrNoLease
		l := newLocker(t, s, core.WithObserver(startFunc(func(ctx context.Context) observe.Observation {
			return observe.Observation{Released: func(observe.Released) { again = lease.Release(ctx) }}
		})))
		lease = held(t, l, t.Context(), "k")
		release(t, lease)
		if again != nil {
			t.Errorf("the observer's call of Release: %v", again)
		}
	})
}

// A hand-off allocates a lease, and nothing else: what that takes decides how often the
// garbage collector runs.
func TestALeaseIsSmall(t *testing.T) {
	if n := unsafe.Sizeof(core.Lease{}); n > 160 {
		t.Errorf("a lease has %d bytes; the allocator's next size above 160 is 176", n)
	}
}
