package quorum_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/driver"
	"github.com/interlock-go/interlock/core/quorum"
	"github.com/interlock-go/interlock/internal/redistest"
)

// What the core builds on a store works on this one as on any other.

func TestWaitersOfOneProcessPassTheLockOnWithoutAVote(t *testing.T) {
	g := newGroup(t, 3)
	l := g.locker(t)
	release(t, lock(t, l, "warm"))
	for _, srv := range g.servers {
		srv.ResetStats(t)
	}
	const n = 200
	first := lock(t, l, "k")
	var wg sync.WaitGroup
	var order []int64
	for range n {
		wg.Go(func() {
			lease, err := l.Lock(t.Context(), "k")
			if err != nil {
				t.Error(err)
				return
			}
			order = append(order, lease.Token()) // the lock guards it
			release(t, lease)
		})
	}
	redistest.Eventually(t, 10*time.Second, func(context.Context) error {
		if held := l.Held(); len(held) != 1 || held[0].Waiters < n {
			return fmt.Errorf("not all wait: %+v", held)
		}
		return nil
	})
	last := first.Token()
	release(t, first)
	wg.Wait()
	for _, token := range order {
		if token <= last {
			t.Fatalf("token %d after %d", token, last)
		}
		last = token
	}
	if calls := g.servers[0].Calls(t)["evalsha"]; calls > n/4 {
		t.Errorf("%d hand-overs took %d requests to a node", n, calls)
	}
	lease := lock(t, g.locker(t), "k")
	if lease.Token() <= last {
		t.Errorf("token %d of another process after %d", lease.Token(), last)
	}
	release(t, lease)
	g.wantGone(t)
}

func TestReentryLockAllAndDo(t *testing.T) {
	g := newGroup(t, 3)
	patient := quorum.NodeTimeout(2 * time.Second)
	a, b := lockerOn(t, g.store(t, patient)), lockerOn(t, g.store(t, patient))
	lease, err := a.LockAll(t.Context(), []string{"y", "x", "z"})
	if err != nil {
		t.Fatal(err)
	}
	inner, err := a.TryLock(lease.Context(), "y")
	if err != nil {
		t.Fatal(err)
	}
	if token, ok := lease.TokenFor("y"); !ok || inner.Token() != token {
		t.Errorf("re-entry: token %d, that of the lock is %d", inner.Token(), token)
	}
	release(t, inner)
	for _, key := range []string{"x", "y", "z"} {
		if _, err := b.TryLock(t.Context(), key); !errors.Is(err, core.ErrHeld) {
			t.Errorf("TryLock(%s): %v, want ErrHeld", key, err)
		}
	}
	release(t, lease)
	fixed, err := b.LockAll(t.Context(), []string{"x", "y"}, core.TTL(20*time.Second))
	if err != nil {
		t.Fatal(err)
	}
	release(t, fixed)
	before, _ := fixed.TokenFor("x")
	var token int64
	if err := b.Do(t.Context(), "x", func(ctx context.Context) error {
		token = core.LeaseFromContext(ctx).Token()
		return nil
	}); err != nil || token <= before {
		t.Errorf("Do: %v, token %d after %d", err, token, before)
	}
	g.wantGone(t)
}

func TestAWaiterFindsACrashedHoldersLockWithItsLease(t *testing.T) {
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
	g := newGroup(t, 5)
	holder, waiter := g.locker(t), g.locker(t)
	g.wantAll(t, holder)
	for i := range 5 {
		key := fmt.Sprint("k", i)
		lease := lock(t, holder, key)
		g.wantHeld(t, key) // the slower nodes too, before somebody else asks them
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
					return fmt.Errorf("nobody waits on node %d", n)
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
			t.Errorf("heard of after %v", d)
		}
	}
	g.wantGone(t)
}
