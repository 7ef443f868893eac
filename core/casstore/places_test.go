package casstore_test

import (
	"context"
	"fmt"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/casstore"
	"github.com/interlock-go/interlock/core/casstore/castest"
	"github.com/interlock-go/interlock/core/driver"
)

// A place that stays is taken for a locker that waits, at each release.
func TestPlacesOfCallersThatLeaveDuringAnOutageGo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := castest.NewMemory()
		a, b := start(t, server), start(t, server)
		ctx, cancel := context.WithCancel(t.Context())
		left := make(chan struct{})
		for i := range 50 {
			key := fmt.Sprint("k", i)
			a.lock(t, key)
			go func() {
				_, _ = b.Lock(ctx, key)
				left <- struct{}{}
			}()
		}
		time.Sleep(time.Second)
		if n := len(named(server, "/lock/")); n != 50 {
			t.Fatalf("%d places; want 50 before the outage", n)
		}
		b.cut.Store(true)
		cancel()
		for range 50 {
			<-left
		}
		time.Sleep(time.Minute)
		b.cut.Store(false)
		time.Sleep(30 * time.Second)
		if n := len(named(server, "/lock/")); n > 0 {
			t.Errorf("%d places of callers that left during the outage stay; want none", n)
		}
	})
}

// lateLeaver makes a store that deletes places late.
func lateLeaver(t *testing.T, server *castest.Memory) *casstore.Store {
	return open(t, castest.Link{Server: server, Meet: func(txn *casstore.Txn) castest.Fault {
		if txn != nil && len(txn.Then) == 1 && txn.Then[0].Delete {
			return castest.Fault{Before: time.Second}
		}
		return castest.Fault{}
	}}, casstore.Timeout(time.Minute), casstore.Logger(slog.New(slog.DiscardHandler)))
}

// The last caller of a process leaves, and another one comes while the place is deleted.
func TestACallerThatComesWhileItsPlaceIsDeletedIsListed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := castest.NewMemory()
		start(t, server).lock(t, "k")
		b := lateLeaver(t, server)
		ask := driver.AcquireRequest{Key: "k", Owner: "o", TTL: lease, Waiter: "w"}
		wait := func() (stop func()) {
			t.Helper()
			reply, err := b.Acquire(t.Context(), ask)
			if err != nil || !reply.Listed {
				t.Fatalf("%+v, %v; want a place", reply, err)
			}
			return b.Watch("k", time.Now(), func(driver.Signal) {})
		}
		wait()()
		defer wait()()
		time.Sleep(3 * time.Second)
		if len(named(server, "/k/lock/w")) == 0 {
			t.Error("the store has said that the locker is listed, and its place is gone")
		}
	})
}

// A caller that leaves before it begins to wait has a place, and no watch.
func TestAPlaceWithoutAWatchGoes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := castest.NewMemory()
		start(t, server).lock(t, "k")
		b := open(t, server)
		reply, err := b.Acquire(t.Context(), driver.AcquireRequest{Key: "k", Owner: "o", TTL: lease, Waiter: "w"})
		if err != nil || !reply.Listed {
			t.Fatalf("%+v, %v; want a place", reply, err)
		}
		time.Sleep(3 * time.Minute)
		if left := named(server, "/k/lock/"); len(left) > 0 {
			t.Errorf("%+v stays; want that it goes after two minutes at most", left)
		}
	})
}

// A process that asks for leases of many lengths has a beat for each of them.
func TestBeatsThatNoLockNeedsGo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := castest.NewMemory()
		a := start(t, server)
		for i := range 150 {
			_ = a.lock(t, "k", core.TTL(time.Duration(5000+i)*time.Millisecond)).Release(t.Context())
		}
		held := a.lock(t, "held")
		if n := len(named(server, "/:beat/")); n < 150 {
			t.Fatalf("%d beats; want more than 150 at first", n)
		}
		time.Sleep(3 * time.Minute)
		if n := len(named(server, "/:beat/")); n != 1 {
			t.Errorf("%d beats; want 1, of the lock that is held", n)
		}
		if err := held.Err(); err != nil {
			t.Errorf("the lock that is held: %v", err)
		}
		_ = held.Release(t.Context())
		store := open(t, server)
		if _, err := store.Acquire(t.Context(), driver.AcquireRequest{Key: "other", Owner: "o", TTL: lease}); err != nil {
			t.Fatal(err)
		}
		if _, err := store.Release(t.Context(), driver.ReleaseRequest{Key: "other", Owner: "o", TTL: lease}); err != nil {
			t.Fatal(err)
		}
		before := len(named(server, "/:beat/"))
		_ = store.Close()
		if n := len(named(server, "/:beat/")); n != before-1 {
			t.Errorf("%d beats of %d after the Close of a store without locks; want one less", n, before)
		}
	})
}
