package core_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/driver"
	"github.com/interlock-go/interlock/core/memstore"
)

// keptFor returns a store with a lock that was released and is kept for a locker, which may take so long.
func keptFor(t *testing.T, key string, patience time.Duration, kind driver.Kind) *memstore.Store {
	t.Helper()
	s := memstore.New()
	holder := newLocker(t, s)
	lease := held(t, holder, t.Context(), key)
	rep, err := s.Acquire(t.Context(), driver.AcquireRequest{
		Key: key, Owner: "waits:1", Kind: kind, AtMost: 1, TTL: time.Minute, Waiter: driver.NewWaiter("waits", kind, patience),
	})
	if err != nil || !rep.Listed {
		t.Fatalf("the request of a locker that waits: %+v, %v; want it listed", rep, err)
	}
	release(t, lease)
	return s
}

// A caller that does not wait for a holder was refused by a lock without one: it was kept for a locker that
// had ended. With many such callers, as cron jobs are, that was so each time.
func TestACallerThatDoesNotWaitHasALockThatIsKeptForTheDead(t *testing.T) {
	for name, kind := range map[string]driver.Kind{"lock": driver.Exclusive, "permit": driver.Permit} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := keptFor(t, "k", 20*time.Millisecond, kind)
				l := newLocker(t, s)
				var opts []core.Option
				if kind == driver.Permit {
					opts = append(opts, core.Permits(1))
				}
				begin := time.Now()
				lease, err := l.TryLock(t.Context(), "k", opts...)
				if err != nil {
					t.Fatalf("%v; want the lock, since the locker that it was kept for does not come", err)
				}
				if d := time.Since(begin); d < 20*time.Millisecond || d > 30*time.Millisecond {
					t.Errorf("the lock came after %v; want it when the locker has had its 20 ms", d)
				}
				release(t, lease)
			})
		})
	}
}

// The locker comes in its time.
func TestACallerThatDoesNotWaitLeavesAKeptLockToItsLocker(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := keptFor(t, "k", 20*time.Millisecond, driver.Exclusive)
		l := newLocker(t, s)
		tried := make(chan error)
		go func() {
			_, err := l.TryLock(t.Context(), "k")
			tried <- err
		}()
		time.Sleep(10 * time.Millisecond)
		rep, err := s.Acquire(t.Context(), driver.AcquireRequest{
			Key: "k", Owner: "waits:1", TTL: time.Minute, Waiter: driver.NewWaiter("waits", driver.Exclusive, 20*time.Millisecond),
		})
		if err != nil || !rep.Granted {
			t.Fatalf("the locker that the lock is kept for: %+v, %v; want a grant", rep, err)
		}
		wantErr(t, <-tried, core.ErrHeld)
	})
}

// A far locker may take a second.
func TestACallerThatDoesNotWaitIsRefusedAtOnceByALockThatIsKeptForLong(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLocker(t, keptFor(t, "k", time.Second, driver.Exclusive))
		begin := time.Now()
		_, err := l.TryLock(t.Context(), "k")
		wantErr(t, err, core.ErrHeld)
		if d := time.Since(begin); d > 0 {
			t.Errorf("refused after %v, want at once", d)
		}
	})
}
