package core_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/driver"
)

// fullStore is a store with a full list: other lockers hold its lock and wait for it.
// It refuses each try, and does not enter the locker that asks.
type fullStore struct {
	*notedStore
	list driver.Waiters

	mu    sync.Mutex
	tries int
	wakes []func(driver.Signal)
}

func newFull() *fullStore {
	names := make([]string, 63)
	for i := range names {
		names[i] = fmt.Sprintf("%032x", i)
	}
	return &fullStore{notedStore: newStore(), list: driver.Waiters(strings.Join(names, ","))}
}

func (s *fullStore) Acquire(context.Context, driver.AcquireRequest) (driver.Reply, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.tries++
	return driver.Reply{Holder: "other:1", TTL: time.Minute, Sent: time.Now()}, nil
}

func (s *fullStore) Watch(_, _ string, _ time.Time, wake func(driver.Signal)) func() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.wakes = append(s.wakes, wake)
	return func() {}
}

// released announces a release to all, and returns how many have asked since the one
// before.
func (s *fullStore) released() int {
	s.mu.Lock()
	wakes, asked := s.wakes, s.tries
	s.tries = 0
	s.mu.Unlock()
	for _, wake := range wakes {
		wake(driver.Signal{Next: s.list})
	}
	synctest.Wait()
	return asked
}

// waitFor begins to wait for the lock, and returns what ends that.
func (s *fullStore) waitFor(t *testing.T, l *core.Locker) (granted <-chan *core.Lease, leave func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan *core.Lease, 1)
	go func() {
		defer close(done)
		if lease, err := l.Lock(ctx, "k"); err == nil {
			done <- lease
		}
	}()
	return done, func() {
		cancel()
		<-done
	}
}

// Each locker that a full list leaves out asks again and again, but not all of them
// at once: the same ones would always come first.
func TestLockersThatAFullListLeavesOutDoNotAskAtOnce(t *testing.T) {
	const lockers, releases = 200, fullRounds
	for name, turn := range map[string]time.Duration{
		"turns of 1 ms": time.Millisecond, "turns of 20 ms": 20 * time.Millisecond,
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newFull()
				for range lockers {
					_, leave := s.waitFor(t, newLocker(t, s))
					t.Cleanup(leave)
				}
				synctest.Wait()
				s.released()
				total, most := 0, 0
				for range releases {
					time.Sleep(turn)
					n := s.released()
					total += n
					most = max(most, n)
				}
				// A locker asks after 63 releases on average, or after 815 ms.
				mean := float64(total) / releases
				if mean < 1.5 || mean > 9 || most > 40 {
					t.Errorf("%.1f tries for each release, and up to %d; want about %d, or in turns of 20 ms 6", mean, most, lockers/63)
				}
			})
		})
	}
}
