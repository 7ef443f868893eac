package memstore_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/driver"
	"github.com/interlock-go/interlock/core/driver/drivertest"
	"github.com/interlock-go/interlock/core/idempotency/record"
	"github.com/interlock-go/interlock/core/idempotency/record/recordtest"
	"github.com/interlock-go/interlock/core/memstore"
	_ "github.com/interlock-go/interlock/internal/bubble"
)

// The contract has all its parts.
var _ interface {
	driver.Turns
} = (*memstore.Store)(nil)

func TestTheStoreKeepsItsContracts(t *testing.T) {
	for name, fault := range map[string]memstore.Fault{
		"at once": {}, "slow": memstore.Delay(time.Millisecond), // which goes another way
	} {
		open := func() *memstore.Store {
			store := memstore.New()
			store.Intercept(func(memstore.Request) memstore.Fault { return fault })
			return store
		}
		t.Run("locks "+name, func(t *testing.T) {
			drivertest.RunInBubbles(t, func(*testing.T) driver.Store { return open() })
		})
		t.Run("records "+name, func(t *testing.T) {
			recordtest.RunInBubbles(t, func(*testing.T) record.Store { return open() })
		})
	}
}

// newLocker makes a locker that is closed at the end of the test.
func newLocker(t *testing.T, store core.Store, opts ...core.LockerOption) *core.Locker {
	t.Helper()
	locker, err := core.New(store, opts...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if err := locker.Close(ctx); err != nil {
			t.Errorf("closing the locker: %v", err)
		}
	})
	return locker
}

func mustLock(t *testing.T, locker *core.Locker, key string) *core.Lease {
	t.Helper()
	lease, err := locker.Lock(t.Context(), key)
	if err != nil {
		t.Fatal(err)
	}
	return lease
}

func TestALeaseIsRenewedInABubble(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memstore.New()
		lease := mustLock(t, newLocker(t, store), "k")
		time.Sleep(10 * time.Minute)
		if err := lease.Err(); err != nil {
			t.Errorf("after ten minutes: %v", err)
		}
		if n := store.Requests(memstore.Renew); n < 50 {
			t.Errorf("%d renewals in ten minutes", n)
		}
		if err := lease.Release(t.Context()); err != nil {
			t.Error(err)
		}
		if owner, _, ok := store.Holder("k"); ok {
			t.Errorf("%q still holds the lock", owner)
		}
	})
}

func TestTakeAndExpireAreALossForTheHolder(t *testing.T) {
	for name, lose := range map[string]func(*memstore.Store){
		"taken":   func(s *memstore.Store) { s.Take("k", time.Hour) },
		"expired": func(s *memstore.Store) { s.Expire("k") },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store := memstore.New()
				lease := mustLock(t, newLocker(t, store), "k")
				lose(store)
				<-lease.Context().Done()
				if err := context.Cause(lease.Context()); !errors.Is(err, core.ErrLost) {
					t.Errorf("the context ended with %v; want ErrLost", err)
				}
				if err := lease.Release(t.Context()); !errors.Is(err, core.ErrLost) {
					t.Errorf("Release: %v; want ErrLost", err)
				}
			})
		})
	}
}

func TestAnotherProcessHoldsTheLockUntilItReleases(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memstore.New()
		locker := newLocker(t, store)
		free := store.Take("k", time.Hour)
		if _, err := locker.TryLock(t.Context(), "k"); !errors.Is(err, core.ErrHeld) {
			t.Errorf("TryLock: %v; want ErrHeld", err)
		}
		var wg sync.WaitGroup
		begin := time.Now()
		wg.Go(func() {
			lease, err := locker.Lock(t.Context(), "k")
			if err != nil {
				t.Error(err)
				return
			}
			if waited := time.Since(begin); waited < time.Minute || waited > time.Minute+time.Second {
				t.Errorf("the lock was granted after %v; it was released after a minute", waited)
			}
			_ = lease.Release(t.Context())
		})
		time.Sleep(time.Minute)
		free()
		wg.Wait()
		free() // harmless, also when another holds the lock
	})
}

func TestFaults(t *testing.T) {
	t.Run("unreachable", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			store := memstore.New()
			locker := newLocker(t, store)
			lease := mustLock(t, locker, "held")
			store.Intercept(func(memstore.Request) memstore.Fault { return memstore.Unreachable })
			if _, err := locker.Lock(t.Context(), "k", core.Wait(time.Second)); !errors.Is(err, core.ErrUnavailable) {
				t.Errorf("Lock: %v; want ErrUnavailable", err)
			}
			begin := time.Now()
			<-lease.Context().Done()
			if d := time.Since(begin); d > 30*time.Second {
				t.Errorf("the lease was lost after %v; the store would have let it expire after 30s", d)
			}
			_ = lease.Release(t.Context())
		})
	})
	t.Run("lost reply", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			store := memstore.New()
			locker := newLocker(t, store)
			store.Intercept(func(r memstore.Request) memstore.Fault {
				if r.Op == memstore.Acquire {
					return memstore.LostReply
				}
				return memstore.Fault{}
			})
			if _, err := locker.Lock(t.Context(), "k"); !errors.Is(err, core.ErrUnavailable) {
				t.Errorf("Lock: %v; want ErrUnavailable", err)
			}
			store.Intercept(nil)
			time.Sleep(time.Minute) // the locker cleans up after the lost reply
			if owner, _, ok := store.Holder("k"); ok {
				t.Errorf("%q holds the lock, and its caller was told that it has none", owner)
			}
		})
	})
	t.Run("slower than the caller waits", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			store := memstore.New()
			locker := newLocker(t, store)
			store.Intercept(func(memstore.Request) memstore.Fault { return memstore.Delay(time.Minute) })
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			begin := time.Now()
			if _, err := locker.Lock(ctx, "k"); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("Lock: %v; want DeadlineExceeded", err)
			}
			if d := time.Since(begin); d != time.Second {
				t.Errorf("the caller left after %v; its context ended after 1s", d)
			}
			store.Intercept(nil)
			time.Sleep(10 * time.Minute)
			if owner, _, ok := store.Holder("k"); ok {
				t.Errorf("%q holds the lock, and its caller has left", owner)
			}
		})
	})
}

func TestKeysThatAreNotUsedAnyMoreAreForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memstore.New()
		request := func(i int) driver.AcquireRequest {
			return driver.AcquireRequest{Key: string(rune(i + 1)), Owner: "o", TTL: time.Second}
		}
		for i := range 10_000 {
			if _, err := store.Acquire(t.Context(), request(i)); err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Second)
		}
		if n := memstore.Locks(store); n > 2_000 {
			t.Errorf("%d keys are kept, and one is held", n)
		}
	})
}

// Nobody holds the lock, and the store's clock is set back while it is kept.
func TestNothingIsKeptForLongerWhenTheClockIsSetBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := memstore.New()
		ask := func(key, name string, kind driver.Kind, line driver.Line) driver.Reply {
			rep, err := s.Acquire(t.Context(), driver.AcquireRequest{
				Key: key, Owner: name + ":1", TTL: time.Minute, Kind: kind, Line: line, Left: time.Minute, Waiter: driver.Waiter(name + "~a"),
			})
			if err != nil {
				t.Fatal(err)
			}
			return rep
		}
		ask("turn", "holder", driver.Exclusive, driver.InTurn)
		ask("turn", "dead", driver.Exclusive, driver.InTurn)
		ask("turn", "live", driver.Exclusive, driver.InTurn)
		if _, err := s.Release(t.Context(), driver.ReleaseRequest{Key: "turn", Owner: "holder:1", TTL: time.Minute}); err != nil {
			t.Fatal(err)
		}
		ask("barrier", "reader", driver.Shared, driver.InTurn)
		ask("barrier", "dead", driver.Exclusive, driver.InTurn)
		ask("only", "holder", driver.Exclusive, driver.InTurn)
		ask("only", "dead", driver.Exclusive, driver.OneWaiter)
		s.StepClock(-time.Hour)
		ask("turn", "live", driver.Exclusive, driver.InTurn)
		ask("barrier", "second", driver.Shared, driver.InTurn)
		time.Sleep(1500 * time.Millisecond)
		if rep := ask("turn", "live", driver.Exclusive, driver.InTurn); !rep.Granted {
			t.Errorf("the locker behind one that has died is refused: %+v", rep)
		}
		if rep := ask("barrier", "second", driver.Shared, driver.InTurn); !rep.Granted {
			t.Errorf("a place is refused for an exclusive caller that has died: %+v", rep)
		}
		if rep := ask("only", "live", driver.Exclusive, driver.OneWaiter); rep.Out {
			t.Error("a caller is refused for the only waiter, which has died")
		}
	})
}
