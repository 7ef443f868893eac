package core_test

import (
	"context"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/driver"
	"github.com/interlock-go/interlock/core/memstore"
)

// fullStore is a store with a full list: it refuses each try, for a long lease, and does not enter the locker
// that asks.
type fullStore struct {
	*memstore.Store

	mu    sync.Mutex
	tries map[string][]time.Time // by the locker
	free  bool
}

func (s *fullStore) Acquire(ctx context.Context, req driver.AcquireRequest) (driver.Reply, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.free {
		return s.Store.Acquire(ctx, req)
	}
	s.tries[req.Waiter.ID()] = append(s.tries[req.Waiter.ID()], time.Now())
	return driver.Reply{Holder: "other:1", TTL: time.Hour, Sent: time.Now()}, nil
}

// No call comes to a locker that a full list leaves out. So it asks by time, and not all such lockers at
// once: the same ones would always come first.
func TestLockersThatAFullListLeavesOutAskByTime(t *testing.T) {
	const lockers, lasts = 200, 20 * time.Second
	synctest.Test(t, func(t *testing.T) {
		s := &fullStore{Store: memstore.New(), tries: map[string][]time.Time{}}
		ctx, leave := context.WithCancel(t.Context())
		defer leave()
		var all sync.WaitGroup
		got := make(chan time.Time, lockers)
		for range lockers {
			l := newLocker(t, s)
			all.Go(func() {
				if lease, err := l.Lock(ctx, "k"); err == nil {
					got <- time.Now()
					release(t, lease)
				}
			})
		}
		time.Sleep(lasts)
		s.mu.Lock()
		var asked []time.Time
		for id, tries := range s.tries {
			asked = append(asked, tries[2:]...) // the first, and one when the calls begin
			for i := range tries[1:] {
				if pause := tries[i+1].Sub(tries[i]); pause > 1600*time.Millisecond {
					t.Errorf("%s asks %v after its last try; want 1.5 s at most", id, pause)
				}
			}
			if last := time.Since(tries[len(tries)-1]); last > 1600*time.Millisecond {
				t.Errorf("%s has last asked %v ago; want 1.5 s at most", id, last)
			}
		}
		s.free = true
		began := time.Now()
		s.mu.Unlock()
		slices.SortFunc(asked, time.Time.Compare)
		for i := 30; i < len(asked); i++ {
			if took := asked[i].Sub(asked[i-30]); took < 20*time.Millisecond {
				t.Fatalf("30 lockers ask within %v; want about %d a second", took, lockers)
			}
		}
		if d := (<-got).Sub(began); d > 100*time.Millisecond {
			t.Errorf("the first of %d that were left out has the free lock after %v; want a short time", lockers, d)
		}
		leave()
		all.Wait()
	})
}

var _ core.Store = (*fullStore)(nil)
