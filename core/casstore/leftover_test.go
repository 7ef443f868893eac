package casstore_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/casstore"
	"github.com/interlock-go/interlock/core/casstore/castest"
	"github.com/interlock-go/interlock/core/driver"
)

// A store wrote an entry for each key that it was ever called to, and kept all of them.
func TestNothingIsLeftOfContendedKeys(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const keys = 300
		server := castest.NewMemory()
		a, b := start(t, server), start(t, server)
		var all sync.WaitGroup
		for i := range keys {
			key := fmt.Sprint("k", i)
			held := a.lock(t, key)
			all.Go(func() {
				next := b.lock(t, key)
				time.Sleep(time.Millisecond)
				if err := next.Release(t.Context()); err != nil {
					t.Error(err)
				}
			})
			all.Go(func() { // it leaves
				ctx, cancel := context.WithTimeout(t.Context(), 5*time.Millisecond)
				defer cancel()
				if _, err := a.Lock(ctx, key); !errors.Is(err, context.DeadlineExceeded) {
					t.Errorf("%s: %v; want the lock held", key, err)
				}
			})
			time.Sleep(20 * time.Millisecond)
			if err := held.Release(t.Context()); err != nil {
				t.Error(err)
			}
		}
		all.Wait()
		time.Sleep(3 * time.Second)
		for _, e := range server.Entries() {
			if !strings.HasPrefix(e.Name, "interlock/:beat/") && !strings.HasPrefix(e.Name, "interlock/:void/") {
				t.Errorf("%s is left; want the signs of life alone", e.Name)
			}
		}
		t.Logf("%.1f transactions a key", float64(server.Commits())/keys)
		time.Sleep(15 * time.Minute)
		for _, m := range []*machine{a, b} {
			if n := casstore.Remembers(m.store); n > 0 {
				t.Errorf("a store remembers %d keys; want 0 after the last request", n)
			}
		}
	})
}

// Of keys that are called all the time the calls stay.
func TestACallThatIsWrittenAllTheTimeCostsNoDeletion(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := castest.NewMemory()
		grants, transactions := crowd(t, server, 4, time.Millisecond, 10*time.Second)
		if most := 3 * grants; transactions > most {
			t.Errorf("%d transactions for %d grants; want 3 a grant at most", transactions, grants)
		}
		t.Logf("%.2f transactions a grant", float64(transactions)/float64(grants))
	})
}

// The request that takes a locker out of the line was given up after a second, and its place stayed.
func TestNoPlaceIsLeftOfCallersThatLeftDuringAnOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const keys = 20
		server := castest.NewMemory()
		a, b := start(t, server), start(t, server)
		ctx, cancel := context.WithCancel(t.Context())
		var all sync.WaitGroup
		var held []*core.Lease
		for i := range keys {
			key := fmt.Sprint("k", i)
			held = append(held, a.lock(t, key))
			all.Go(func() { _, _ = b.Lock(ctx, key) })
		}
		time.Sleep(time.Second)
		b.cut.Store(true)
		cancel()
		all.Wait()
		time.Sleep(time.Minute)
		b.cut.Store(false)
		time.Sleep(time.Minute)
		for i := range keys {
			if view, err := a.store.Look(t.Context(), fmt.Sprint("k", i)); err != nil || view.Waiting != "" {
				t.Errorf("%q wait for lock %d, %v; want that none waits, a minute after the outage", view.Waiting, i, err)
			}
		}
		for _, l := range held {
			_ = l.Release(t.Context())
		}
	})
}

// A request that asks once leaves at its refusal. A lock that was kept for lockers which have ended was kept for ever:
// each such request counted the time of their turns anew.
func TestALockThatIsKeptForLockersThatHaveEndedIsHadByARequestThatAsksOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := castest.NewMemory()
		a, ended := locker{open(t, server), t, "a"}, open(t, server)
		a.ask()
		waiter := driver.NewWaiter("ended", driver.Exclusive, 100*time.Millisecond)
		if _, err := ended.Acquire(t.Context(), driver.AcquireRequest{Key: "k", Owner: "ended:1", TTL: lease, Waiter: waiter}); err != nil {
			t.Fatal(err)
		}
		a.release()
		_ = a.Close()
		once := driver.AcquireRequest{Key: "k", Owner: "once:1", TTL: lease, Deadline: time.Now().Add(time.Second), Late: func(driver.Reply, error) {}}
		reply, err := open(t, server).Acquire(t.Context(), once)
		if took := time.Until(once.Deadline); err != nil || !reply.Granted || took < 700*time.Millisecond {
			t.Errorf("%+v, %v, with %v left of a second; want the lock when the turn of 100 ms has ended", reply, err, took)
		}
	})
}
