package core_test

import (
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/memstore"
)

// A caller that bounds its wait made a timer and two copies of the options for each lock that
// it was handed: seven allocations.
func TestAHandOffAllocatesNoMoreThanItsLease(t *testing.T) {
	const callers, locks = 16, 200
	for name, c := range map[string]struct {
		lock func(l *core.Locker) (*core.Lease, error)
		most float64
	}{
		"without options": {func(l *core.Locker) (*core.Lease, error) { return l.Lock(t.Context(), "k") }, 1},
		// The lease, the option and the closure of the call. Under the race detector a pool
		// drops some of its items, and the bound allows for that.
		"with a bounded wait": {func(l *core.Locker) (*core.Lease, error) { return l.Lock(t.Context(), "k", core.Wait(time.Minute)) }, 4},
	} {
		t.Run(name, func(t *testing.T) {
			l, err := core.New(memstore.New())
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = l.Close(t.Context()) })
			n := testing.AllocsPerRun(1, func() {
				var all sync.WaitGroup
				for range callers {
					all.Go(func() {
						for range locks {
							lease, err := c.lock(l)
							if err != nil {
								t.Error(err)
								return
							}
							runtime.Gosched() // until the others wait
							if err := lease.Release(t.Context()); err != nil {
								t.Error(err)
							}
						}
					})
				}
				all.Wait()
			}) / (callers * locks)
			if n >= c.most+1 {
				t.Errorf("a lock and its release allocate %.2f times, want at most %v", n, c.most)
			}
		})
	}
}
