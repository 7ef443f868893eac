package core_test

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/driver"
	"github.com/interlock-go/interlock/core/memstore"
)

// notedStore is a store in memory that notes its requests.
type notedStore struct {
	*memstore.Store

	mu      sync.Mutex
	calls   []memstore.Request
	hearers map[string]func(driver.Call) // by the id of the locker
}

func newStore() *notedStore {
	s := &notedStore{Store: memstore.New(), hearers: map[string]func(driver.Call){}}
	s.Intercept(nil)
	return s
}

// Intercept sets what happens to requests on their way, as [memstore.Store.Intercept]
// does.
func (s *notedStore) Intercept(f func(memstore.Request) memstore.Fault) {
	s.Store.Intercept(func(r memstore.Request) memstore.Fault {
		s.mu.Lock()
		s.calls = append(s.calls, r)
		s.mu.Unlock()
		if f == nil {
			return memstore.Fault{}
		}
		return f(r)
	})
}

// always makes one fault of all requests.
func always(f memstore.Fault) func(memstore.Request) memstore.Fault {
	return func(memstore.Request) memstore.Fault { return f }
}

// during makes one fault of all requests of an operation.
func during(op memstore.Op, f memstore.Fault) func(memstore.Request) memstore.Fault {
	return func(r memstore.Request) memstore.Fault {
		if r.Op == op {
			return f
		}
		return memstore.Fault{}
	}
}

// atFirst makes a fault of the first request of an operation.
func atFirst(op memstore.Op, f memstore.Fault) func(memstore.Request) memstore.Fault {
	var before atomic.Bool
	return func(r memstore.Request) memstore.Fault {
		if r.Op == op && !before.Swap(true) {
			return f
		}
		return memstore.Fault{}
	}
}

// Calls implements driver.Store.
func (s *notedStore) Calls(id string, hear func(driver.Call)) (stop func()) {
	s.mu.Lock()
	s.hearers[id] = hear
	s.mu.Unlock()
	return s.Store.Calls(id, hear)
}

// seen returns the requests of a kind; op "" is all.
func (s *notedStore) seen(op memstore.Op) (all []memstore.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, r := range s.calls {
		if op == "" || r.Op == op {
			all = append(all, r)
		}
	}
	return all
}

// count is how many requests of a kind there were; op "" is all.
func (s *notedStore) count(op memstore.Op) int { return len(s.seen(op)) }

// forget begins counting anew.
func (s *notedStore) forget() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.calls = nil
}

// late executes a request for a lock that was under way for long.
func (s *notedStore) late(t *testing.T, key, owner string, ttl time.Duration) {
	t.Helper()
	rep, err := s.Acquire(t.Context(), driver.AcquireRequest{Key: key, Owner: owner, TTL: ttl})
	if err != nil || !rep.Granted {
		t.Errorf("the late request: %+v, %v", rep, err)
	}
}

// holder is who holds a lock, or "".
func (s *notedStore) holder(key string) string {
	owner, _, _ := s.Holder(key)
	return owner
}

// newLocker makes a locker on a store and closes it at the end of the test.
func newLocker(tb testing.TB, store core.Store, opts ...core.LockerOption) *core.Locker {
	tb.Helper()
	l, err := core.New(store, opts...)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if err := l.Close(ctx); err != nil {
			tb.Errorf("Close: %v", err)
		}
		if n := core.Entries(l); n != 0 {
			tb.Errorf("%d queue entries are left after Close", n)
		}
	})
	return l
}
