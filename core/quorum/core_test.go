//go:build long

package quorum_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/driver"
	"github.com/interlock-go/interlock/internal/redistest"
)

func TestAWaiterFindsACrashedHoldersLockWithItsLease(t *testing.T) {
	t.Parallel()
	g := newGroup(t, 3)
	s := inStep{g.store(t)}
	crashed, err := s.Acquire(t.Context(), driver.AcquireRequest{Key: "k", Owner: "crashed", TTL: 2 * time.Second})
	if err != nil || !crashed.Granted {
		t.Fatalf("%+v, %v", crashed, err)
	}
	begin := time.Now()
	lease := lock(t, g.locker(t), "k")
	if d := time.Since(begin); d > 10*time.Second {
		t.Errorf("it slept on a free key for %v", d)
	}
	if lease.Token() <= crashed.Token {
		t.Errorf("token %d after %d", lease.Token(), crashed.Token)
	}
	release(t, lease)
}

func TestAReleaseIsHeardFromAnyNode(t *testing.T) {
	t.Parallel()
	g := newGroup(t, 5)
	holder, waiter := g.locker(t), g.locker(t)
	g.wantAll(t, holder)
	for i := range 5 {
		key := fmt.Sprint("k", i)
		lease := lock(t, holder, key)
		g.wantHeld(t, key) // the slower nodes too, before another process asks them
		got := make(chan error, 1)
		go func() {
			l, err := waiter.Lock(t.Context(), key)
			if err == nil {
				err = l.Release(t.Context())
			}
			got <- err
		}()
		redistest.Eventually(t, 5*time.Second, func(ctx context.Context) error {
			for n, rdb := range g.admins {
				if !rdb.HExists(ctx, "interlock:{"+key+"}", "q").Val() {
					return fmt.Errorf("no locker waits on node %d", n)
				}
			}
			return nil
		})
		// All subscriptions are gone but that to one node.
		for n, rdb := range g.admins {
			if n != i {
				rdb.ClientKillByFilter(t.Context(), "TYPE", "pubsub")
			}
		}
		begin := time.Now()
		release(t, lease)
		if err := <-got; err != nil {
			t.Fatal(err)
		}
		if d := time.Since(begin); d > 10*time.Second { // without the message it is the lease
			t.Errorf("heard after %v", d)
		}
	}
	g.wantGone(t)
}

// contend has some lockers take some keys, many times over, each of them on each
// key by some goroutines, and checks that they exclude each other and that tokens
// grow. last are the last tokens of the keys. It returns how many grants there were, and how often too few nodes could be
// reached.
func contend(t *testing.T, lockers []*core.Locker, last []atomic.Int64, goroutines, each int) (grants, failures int64) {
	t.Helper()
	var total, failed atomic.Int64
	var wg sync.WaitGroup
	for k := range last {
		key := fmt.Sprint("k", k)
		var inside atomic.Int64
		work := func(l *core.Locker) {
			for range each {
				lease, err := patiently(l, key, &failed)
				if err != nil {
					t.Error(err)
					return
				}
				if n := inside.Add(1); n != 1 {
					t.Errorf("%s: %d inside", key, n)
				}
				if before := last[k].Swap(lease.Token()); lease.Token() <= before {
					t.Errorf("%s: token %d after %d", key, lease.Token(), before)
				}
				if err := lease.Err(); err != nil {
					t.Errorf("%s: it came lost: %v", key, err)
				}
				total.Add(1)
				inside.Add(-1)
				_ = lease.Release(context.Background()) // a release that failed is repeated in the background
			}
		}
		for _, l := range lockers {
			for range goroutines {
				wg.Go(func() { work(l) })
			}
		}
	}
	wg.Wait()
	return total.Load(), failed.Load()
}

// patiently takes a lock although the nodes may be out of reach for a while.
func patiently(l *core.Locker, key string, failed *atomic.Int64) (*core.Lease, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	for {
		lease, err := l.Lock(context.WithoutCancel(ctx), key, core.Wait(time.Minute))
		if !errors.Is(err, core.ErrUnavailable) || ctx.Err() != nil {
			return lease, err
		}
		failed.Add(1)
	}
}

func TestSeveralProcessesExcludeEachOther(t *testing.T) {
	t.Parallel()
	g := newGroup(t, 5)
	var lockers []*core.Locker
	for range 4 {
		lockers = append(lockers, g.locker(t))
	}
	begin := time.Now()
	n, failed := contend(t, lockers, make([]atomic.Int64, 1), 4, 100)
	t.Logf("%d grants in %v; %d times too few nodes could be reached", n, time.Since(begin), failed)
	g.wantGone(t)
}
