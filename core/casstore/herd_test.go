package casstore_test

import (
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/casstore"
	"github.com/interlock-go/interlock/core/casstore/castest"
)

// crowd has some processes, each with one caller, take turns with one key for a time. It returns the
// grants of each process. Each way to the server takes a millisecond, and longer for the far ones.
func crowd(t *testing.T, server *castest.Memory, processes, far int, distance, hold, during time.Duration) (grants []int) {
	t.Helper()
	grants = make([]int, processes)
	var all sync.WaitGroup
	var reports atomic.Int64
	end := time.Now().Add(during)
	for i := range processes {
		way := time.Millisecond
		if i < far {
			way = distance
		}
		store := open(t, castest.Link{Server: server, Meet: func(txn *casstore.Txn) castest.Fault {
			if txn == nil {
				reports.Add(1)
			}
			return castest.Fault{Before: way, After: way}
		}}, casstore.Logger(slog.New(slog.DiscardHandler)))
		locker, err := core.New(store, core.Unlisted())
		if err != nil {
			t.Fatal(err)
		}
		all.Go(func() {
			defer func() { _ = locker.Close(t.Context()) }()
			for time.Now().Before(end) {
				l, err := locker.Lock(t.Context(), "k")
				if err != nil {
					t.Errorf("Lock: %v", err)
					return
				}
				time.Sleep(hold)
				grants[i]++
				if err := l.Release(t.Context()); err != nil {
					t.Errorf("Release: %v", err)
				}
			}
		})
	}
	all.Wait()
	t.Logf("%d reports", reports.Load())
	return grants
}

func sum(all []int) (n int) {
	for _, one := range all {
		n += one
	}
	return n
}

// Every release woke all processes that waited, and each of them asked.
func TestAGrantCostsFewRequestsAtAnyNumberOfProcesses(t *testing.T) {
	for _, processes := range []int{1, 4, 24, 48} {
		t.Run(fmt.Sprint(processes), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				server := castest.NewMemory()
				grants := crowd(t, server, processes, 0, 0, time.Millisecond, 20*time.Second)
				n := sum(grants)
				if most := 6 * n; server.Commits() > most || n < 1000 {
					t.Errorf("%d transactions for %d grants; want 6 a grant at most", server.Commits(), n)
				}
				t.Logf("%d processes: %d grants, %.1f transactions a grant", processes, n, float64(server.Commits())/float64(n))
			})
		})
	}
}
