package core_test

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/driver"
	"github.com/interlock-go/interlock/core/memstore"
)

// resting records when the lock is asked for.
type resting struct {
	*notedStore

	mu    sync.Mutex
	times []time.Time
}

func (s *resting) Acquire(ctx context.Context, req driver.AcquireRequest) (driver.Reply, error) {
	s.mu.Lock()
	s.times = append(s.times, time.Now())
	s.mu.Unlock()
	return s.notedStore.Acquire(ctx, req)
}

// last returns when the last try was made, and how many there were.
func (s *resting) last() (at time.Time, n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	n = len(s.times)
	return s.times[n-1], n
}

// wait has other lockers wait for the lock.
func (s *resting) wait(t *testing.T, lockers ...string) {
	t.Helper()
	for _, id := range lockers {
		rep, err := s.notedStore.Acquire(t.Context(), driver.AcquireRequest{Key: "k", Owner: id + ":1", TTL: time.Minute, Waiter: driver.Waiter(id)})
		if err != nil || rep.Granted || !rep.Listed {
			t.Fatalf("%+v, %v", rep, err)
		}
	}
}

// The caller that comes next in the process that released the lock lets those go first who
// were called by the release, though the process had not known of them. If they do not
// come, it has the lock soon.
func TestTheNextCallerLetsThoseGoFirstWhoWereCalled(t *testing.T) {
	for name, meanwhile := range map[string]bool{"after the answer": false, "while the release is on its way": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store := &resting{notedStore: newStore()}
				l := newLocker(t, store)
				lease, err := l.Lock(t.Context(), "k")
				if err != nil {
					t.Fatal(err)
				}
				store.wait(t, "first", "second", "third")
				const answer = 100 * time.Microsecond
				store.Intercept(during(memstore.Release, memstore.Fault{After: answer}))
				began := time.Now()
				var all sync.WaitGroup
				next := func() {
					lease, err := l.Lock(t.Context(), "k")
					if err != nil {
						t.Error(err)
						return
					}
					if at, n := store.last(); n != 2 || at.Sub(began) < answer+500*time.Microsecond || at.Sub(began) > 5*time.Millisecond {
						t.Errorf("it asks %v after the release, in the try %d; want the try 2, 0.6 to 5 ms after it", at.Sub(began), n)
					}
					if err := lease.Release(t.Context()); err != nil {
						t.Error(err)
					}
				}
				if meanwhile {
					all.Go(func() {
						time.Sleep(answer / 2)
						next()
					})
				}
				if err := lease.Release(t.Context()); err != nil {
					t.Fatal(err)
				}
				if !meanwhile {
					next()
				}
				all.Wait()
			})
		})
	}
}

// A release that does not call the process that has just released the lock must not put
// its next caller off: it is not in the list before it asks.
func TestAReleaseOfAnotherProcessPutsTheNextCallerNotOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &resting{notedStore: newStore()}
		l := newLocker(t, store)
		other := driver.AcquireRequest{Key: "k", Owner: "other:1", TTL: time.Minute, Waiter: "other"}
		if rep, err := store.notedStore.Acquire(t.Context(), other); err != nil || !rep.Granted {
			t.Fatalf("%+v, %v", rep, err)
		}
		var lease *core.Lease
		var waits sync.WaitGroup
		waits.Go(func() { lease, _ = l.Lock(t.Context(), "k") }) // it hears of releases from now on
		synctest.Wait()
		free := driver.ReleaseRequest{Key: "k", Owner: "other:1"}
		if _, err := store.Release(t.Context(), free); err != nil {
			t.Fatal(err)
		}
		waits.Wait()
		store.wait(t, "other")
		if err := lease.Release(t.Context()); err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		waits.Go(func() {
			lease, err := l.Lock(t.Context(), "k")
			if err != nil {
				t.Error(err)
				return
			}
			if took := time.Since(began); took > 5*time.Millisecond {
				t.Errorf("it got the lock after %v", took)
			}
			_ = lease.Release(t.Context())
		})
		synctest.Wait()
		// The other has come, and goes again. Five more are in its list.
		if rep, err := store.notedStore.Acquire(t.Context(), other); err != nil || !rep.Granted {
			t.Fatalf("%+v, %v", rep, err)
		}
		store.wait(t, "1", "2", "3", "4", "5")
		if _, err := store.Release(t.Context(), free); err != nil {
			t.Fatal(err)
		}
		waits.Wait()
	})
}
