package core_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/driver"
	"github.com/interlock-go/interlock/core/memstore"
)

// waiting is a process that waits for locks which another process holds.
func waiting(t *testing.T, s *notedStore, keys ...string) (waits *core.Locker, others []*core.Lease) {
	t.Helper()
	holder, waits := newLocker(t, s), newLocker(t, s)
	for _, key := range keys {
		others = append(others, held(t, holder, t.Context(), key))
		go func() {
			if lease, err := waits.Lock(t.Context(), key); err == nil {
				release(t, lease)
			}
		}()
	}
	synctest.Wait()
	s.forget()
	return waits, others
}

// A call is a hint: forged or late, it has the process ask sooner than it had planned, and never later.
func TestACallPutsOffNoRequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStore()
		l, others := waiting(t, s, "k")
		hear := s.hearers[core.ID(l)]
		hear(driver.Call{What: driver.Turn, Key: "k", In: 10 * time.Millisecond})
		for _, in := range []time.Duration{time.Hour, 20 * time.Millisecond, -time.Hour} {
			hear(driver.Call{What: driver.Turn, Key: "other", In: in})
			if in > 0 {
				hear(driver.Call{What: driver.Turn, Key: "k", In: in})
			}
		}
		time.Sleep(9 * time.Millisecond)
		if n := s.count(memstore.Acquire); n != 0 {
			t.Errorf("%d requests before the turn; want none", n)
		}
		time.Sleep(2 * time.Millisecond)
		if n := s.count(memstore.Acquire); n != 1 {
			t.Errorf("%d requests at the turn; want one", n)
		}
		release(t, others[0])
		time.Sleep(time.Second)
	})
}

// A call that comes before the answer to a request may be newer: the answer does not put off another request.
func TestACallBeforeTheAnswerToARequestCounts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStore()
		l, others := waiting(t, s, "k")
		hear := s.hearers[core.ID(l)]
		s.Intercept(during(memstore.Acquire, memstore.Fault{After: 10 * time.Millisecond}))
		hear(driver.Call{What: driver.Turn, Key: "k"})
		time.Sleep(5 * time.Millisecond) // it is refused, and does not know
		hear(driver.Call{What: driver.Turn, Key: "k", In: 50 * time.Millisecond})
		hear(driver.Call{What: driver.Turn, Key: "k", In: time.Hour})
		time.Sleep(40 * time.Millisecond)
		if n := s.count(memstore.Acquire); n != 1 {
			t.Errorf("%d requests before the turn; want one", n)
		}
		time.Sleep(20 * time.Millisecond)
		if n := s.count(memstore.Acquire); n != 2 {
			t.Errorf("%d requests after the turn; want two", n)
		}
		s.Intercept(nil)
		release(t, others[0])
		time.Sleep(time.Second)
	})
}

// Calls that may have been lost are made good by a request for each key that callers wait for.
func TestAProcessAsksForAllKeysWhereCallsMayBeLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStore()
		l, others := waiting(t, s, "a", "b", "c")
		s.hearers[core.ID(l)](driver.Call{Reached: true})
		synctest.Wait()
		asked := map[string]int{}
		for _, r := range s.seen(memstore.Acquire) {
			asked[r.Key]++
		}
		if asked["a"] != 1 || asked["b"] != 1 || asked["c"] != 1 {
			t.Errorf("the requests are %v; want one for each key", asked)
		}
		for _, lease := range others {
			release(t, lease)
		}
		time.Sleep(time.Second)
	})
}

// A process has the store call it from the first time that a caller waits, and no earlier.
func TestCallsBeginWithTheFirstCallerThatWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStore()
		a, b := newLocker(t, s), newLocker(t, s)
		first := held(t, a, t.Context(), "k")
		if _, err := b.TryLock(t.Context(), "k"); err == nil || len(s.hearers) != 0 {
			t.Errorf("%d processes are called, and TryLock gets %v; want none, and that it is held", len(s.hearers), err)
		}
		waits(t.Context(), t, b)
		if len(s.hearers) != 1 || s.hearers[core.ID(b)] == nil {
			t.Errorf("%d processes are called; want only the waiting process", len(s.hearers))
		}
		release(t, first)
		synctest.Wait()
	})
}
