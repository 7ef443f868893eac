package casstore_test

import (
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/casstore/castest"
)

// Processes that come at the same moment change one entry, the line, and many lose their turns in it. A
// locker that was passed over, or came after the lock was kept for others, slept beside a free lock for
// up to a sixth of a lease.
func TestProcessesThatComeTogetherAllHaveTheLockSoon(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const processes = 48
		server := castest.NewMemory()
		var all sync.WaitGroup
		for range processes {
			locker := start(t, server, core.Unlisted())
			all.Go(func() {
				l, err := locker.Lock(t.Context(), "k")
				if err != nil {
					t.Errorf("Lock: %v", err)
					return
				}
				if err := l.Release(t.Context()); err != nil {
					t.Errorf("Release: %v", err)
				}
			})
		}
		began := time.Now()
		all.Wait()
		took := time.Since(began)
		t.Logf("%d processes: %d transactions in %v", processes, server.Commits(), took)
		if took > 900*time.Millisecond {
			t.Errorf("the last of %d processes had the lock after %v; want less than 900 ms: none sleeps beside a free lock", processes, took)
		}
		if most := 20 * processes; server.Commits() > most {
			t.Errorf("%d transactions for %d processes that come at once; want %d at most", server.Commits(), processes, most)
		}
	})
}
