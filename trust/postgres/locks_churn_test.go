//go:build long && unix

package postgres_test

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/interlock-go/interlock/trust/internal/pgtest"
)

// churnFlag is for how long TestChurn goes on.
var churnFlag = flag.Duration("churn", 5*time.Second, "`duration` of TestChurn")

// TestChurn takes and releases locks of few keys and of many, and looks at what that
// leaves in the table.
//
//	go test -v -run Churn -timeout 0 ./postgres -args -churn 1h
func TestChurn(t *testing.T) {
	db := pgtest.Start(t).Open(t)
	s := newLocks(t, db)
	makeLocks(t, s)
	l := newLocker(t, s)
	size := func() (bytes int64) {
		t.Helper()
		if err := db.QueryRowContext(t.Context(), "SELECT pg_total_relation_size('interlock_lock')").Scan(&bytes); err != nil {
			t.Fatal(err)
		}
		return bytes
	}
	ctx, cancel := context.WithTimeout(t.Context(), *churnFlag)
	defer cancel()
	var pairs, failed atomic.Int64
	var failure atomic.Pointer[error]
	work := func(d time.Duration) {
		ctx, cancel := context.WithTimeout(ctx, d)
		defer cancel()
		var all sync.WaitGroup
		for range 8 {
			all.Go(func() {
				for ctx.Err() == nil {
					lease, err := l.Lock(t.Context(), fmt.Sprint("k", rand.IntN(1000)))
					if err == nil {
						err = lease.Release(t.Context())
					}
					if err != nil { // a machine with other work can be late once in an hour
						failure.Store(&err)
						failed.Add(1)
						continue
					}
					pairs.Add(1)
				}
			})
		}
		all.Wait()
	}
	work(*churnFlag / 5) // until all keys have rows
	begin := size()
	work(*churnFlag)
	end := size()
	var all, hot int64
	// Sessions report what they did a second later at the latest.
	eventually(t, "the updates are counted", func() bool {
		before, _ := updates(t, db)
		time.Sleep(1500 * time.Millisecond)
		all, hot = updates(t, db)
		return all == before && all > 0
	})
	share := 100 * float64(hot) / float64(all)
	t.Logf("%d pairs, %d updates, %.2f %% of them HOT, table with index %d kB, then %d kB", pairs.Load(), all, share, begin>>10, end>>10)
	if n := failed.Load(); n > 0 {
		t.Logf("%d more failed, the last with: %v", n, *failure.Load())
	}
	if failed.Load()*1000 > pairs.Load()+20_000 { // a stall of the machine fails some at once
		t.Error("more than one of 1,000 failed, and 20")
	}
	if share < 95 {
		t.Errorf("%.1f %% of the updates touched no index; want 95", share)
	}
	if end > 2*begin+1<<20 {
		t.Errorf("the table has grown from %d to %d bytes", begin, end)
	}
}
