//go:build integration

package redisstore_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/redisstore"
	"github.com/interlock-go/interlock/internal/redistest"
)

// Callers of one process that want permits of one key while the server is silent ask at
// the same time, so that their requests meet in few calls of the script.
func TestPermitsThatOneProcessAsksForTogetherShareCalls(t *testing.T) {
	t.Parallel()
	const n, patience = 40, time.Minute
	srv := redistest.Start(t)
	store, err := redisstore.New(srv.Client(t), redisstore.Timeout(patience))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = store.Close() })
	l, err := core.New(store, core.Watchdog(10*patience), core.Wait(patience))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close(context.Background()) })
	release(t, permit(t, l, "k", n)) // the server knows the scripts
	srv.ResetStats(t)
	srv.Pause(t)
	leases := make([]*core.Lease, n)
	var all sync.WaitGroup
	for i := range n {
		all.Go(func() {
			var err error
			if leases[i], err = l.Permit(t.Context(), "k", n); err != nil {
				t.Error(err)
			}
		})
	}
	redistest.Eventually(t, patience, func(context.Context) error {
		if held := l.Held(); len(held) != 1 || held[0].Waiters != n {
			return fmt.Errorf("not all callers wait: %+v", held)
		}
		return nil
	})
	srv.Resume(t)
	all.Wait()
	calls := srv.Calls(t)
	// Each request is carried out on its own: one HMGET each.
	if sent := calls["evalsha"] + calls["eval"]; sent > n/4 || calls["hmget"] != n {
		t.Errorf("%d permits took %d calls of a script, want at most %d, and each one HMGET: %v", n, sent, n/4, calls)
	}
	for _, lease := range leases {
		if lease != nil {
			release(t, lease)
		}
	}
}
