package casstore_test

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/casstore"
	"github.com/interlock-go/interlock/core/casstore/castest"
	"github.com/interlock-go/interlock/core/driver"
)

// ledger is a user's own entries on the server of the locks.
type ledger struct {
	*testing.T
	server *castest.Memory
}

// held returns the conditions of a lease.
func (l ledger) held(m *machine, lease *core.Lease) []casstore.Condition {
	l.Helper()
	conditions, err := m.store.Held(l.Context(), lease)
	if err != nil {
		l.Fatal(err)
	}
	return conditions
}

// want sends a transaction of the user under conditions, which are to hold or not.
func (l ledger) want(holds bool, conditions []casstore.Condition, when string) {
	l.Helper()
	answer, err := l.server.Commit(l.Context(), casstore.Txn{
		If: conditions, Then: []casstore.Op{{Name: "ledger/42", Value: when}},
	})
	if err != nil || answer.Done != holds || len(conditions) == 0 {
		l.Errorf("%s: the user's transaction was executed: %v, %v; want %v", when, answer.Done, err, holds)
	}
}

// withLedger runs a test in a bubble.
func withLedger(t *testing.T, run func(l ledger)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) { run(ledger{t, castest.NewMemory()}) })
}

func TestAConditionHoldsWhileOthersComeAndLeave(t *testing.T) {
	withLedger(t, func(l ledger) {
		a, b, c := start(l.T, l.server), start(l.T, l.server), start(l.T, l.server)
		lease := a.lock(l.T, "k")
		held := l.held(a, lease)
		l.want(true, held, "held")
		ctx, leave := context.WithCancel(l.Context())
		var left sync.WaitGroup
		left.Go(func() { _, _ = b.Lock(ctx, "k") })
		time.Sleep(time.Second)
		l.want(true, held, "a process waits")
		next := make(chan *core.Lease)
		go func() { next <- c.lock(l.T, "k") }()
		time.Sleep(time.Second)
		if _, err := b.TryLock(l.Context(), "k"); !errors.Is(err, core.ErrHeld) {
			l.Errorf("%v; want ErrHeld", err)
		}
		leave()
		left.Wait()
		time.Sleep(time.Second)
		l.want(true, held, "the first that waits has left")
		time.Sleep(10 * time.Minute)
		l.want(true, held, "many renewals later")
		if again := l.held(a, lease); !slices.Equal(again, held) {
			l.Errorf("another call returns %+v, and the first %+v; want the same", again, held)
		}
		if err := lease.Release(l.Context()); err != nil {
			l.Error(err)
		}
		l.want(false, held, "released")
		other := <-next
		l.want(true, l.held(c, other), "held by the next")
		l.want(false, held, "held by the next")
		if _, err := a.store.Held(l.Context(), lease); !errors.Is(err, core.ErrReleased) {
			l.Errorf("after the release: %v; want ErrReleased", err)
		}
	})
}

// The holder is cut off, and does not know that it has lost the lock.
func TestAConditionFailsAfterATakeOver(t *testing.T) {
	withLedger(t, func(l ledger) {
		a, b := start(l.T, l.server), start(l.T, l.server)
		held := l.held(a, a.lock(l.T, "k"))
		next := make(chan *core.Lease)
		go func() { next <- b.lock(l.T, "k") }()
		time.Sleep(time.Second)
		a.cut.Store(true)
		l.want(true, held, "no process has taken it over")
		other := <-next
		l.want(false, held, "taken over")
		l.want(true, l.held(b, other), "the next holder")
		if err := other.Release(l.Context()); err != nil {
			l.Error(err)
		}
		l.want(false, held, "free")
		if left := named(l.server, "/held/"); len(left) > 0 {
			l.Errorf("%+v is left", left)
		}
	})
}

func TestAConditionFailsAfterALeaseThatWasNotRenewed(t *testing.T) {
	withLedger(t, func(l ledger) {
		a := start(l.T, l.server)
		held := l.held(a, a.lock(l.T, "k", core.TTL(lease)))
		time.Sleep(lease + time.Second)
		l.want(false, held, "the lease has ended")
	})
}

// The store does not see hand-overs in a process. A late transaction of the first caller
// must not follow a transaction of the second caller.
func TestTheNextCallerOfAProcessEndsTheConditionOfTheFirst(t *testing.T) {
	withLedger(t, func(l ledger) {
		a := start(l.T, l.server)
		first := a.lock(l.T, "k")
		held := l.held(a, first)
		next := make(chan *core.Lease)
		go func() { next <- a.lock(l.T, "k") }()
		time.Sleep(time.Second)
		if err := first.Release(l.Context()); err != nil {
			l.Error(err)
		}
		second := <-next
		if second.Token() != first.Token()+1 {
			l.Fatalf("token %d follows %d; want a hand-over in the process", second.Token(), first.Token())
		}
		now := l.held(a, second)
		l.want(false, held, "handed on")
		l.want(true, now, "handed on, to the second")
		if _, err := a.store.Held(l.Context(), stale{first}); !errors.Is(err, driver.ErrNotOwner) {
			l.Errorf("of the first caller: %v; want ErrNotOwner", err)
		}
		l.want(true, now, "after a late call of the first")
	})
}

// stale is a lease that ended after it was looked at.
type stale struct{ *core.Lease }

func (stale) Err() error { return nil }

func TestConditionsOfCallsAtOnceAllHold(t *testing.T) {
	withLedger(t, func(l ledger) {
		a := start(l.T, l.server)
		lease, err := a.LockAll(l.Context(), []string{"k", "another"})
		if err != nil {
			l.Fatal(err)
		}
		var all sync.WaitGroup
		conditions := make([][]casstore.Condition, 5)
		for i := range conditions {
			all.Go(func() { conditions[i] = l.held(a, lease) })
		}
		all.Wait()
		for _, held := range conditions {
			if len(held) != 2 {
				l.Errorf("%+v; want a condition for each key", held)
			}
			l.want(true, held, "held")
		}
	})
}

// The first try was executed, and its answer is lost.
func TestAConditionHoldsAfterAnAnswerIsLost(t *testing.T) {
	withLedger(t, func(l ledger) {
		a, b := start(l.T, l.server), start(l.T, l.server)
		lease := a.lock(l.T, "k")
		synctest.Wait() // no other transaction takes the fault
		a.next.Store(&castest.Fault{Unanswered: true})
		held := l.held(a, lease)
		l.want(true, held, "held")
		if a.next.Load() != nil {
			l.Error("no answer was lost; want the loss of an answer of the call")
		}
		synctest.Wait() // no other transaction takes the fault
		a.next.Store(&castest.Fault{Unanswered: true})
		_ = lease.Release(l.Context()) // it has no answer in its time
		b.lock(l.T, "k")
		l.want(false, held, "held by the next")
	})
}

// The first caller has left its call, and handed the lock on.
func TestALateCallDoesNotEndTheConditionOfTheNextCaller(t *testing.T) {
	withLedger(t, func(l ledger) {
		a := start(l.T, l.server)
		lock := func(after *core.Lease) *core.Lease {
			next := make(chan *core.Lease)
			go func() { next <- a.lock(l.T, "k") }()
			time.Sleep(time.Second)
			if err := after.Release(l.Context()); err != nil {
				l.Error(err)
			}
			return <-next
		}
		first := a.lock(l.T, "k")
		l.held(a, first)
		second := lock(first)
		synctest.Wait() // no other transaction takes the fault
		a.next.Store(&castest.Fault{Before: 10 * time.Second})
		ctx, cancel := context.WithTimeout(l.Context(), 10*time.Millisecond)
		defer cancel()
		if _, err := a.store.Held(ctx, second); !errors.Is(err, core.ErrUnavailable) {
			l.Errorf("%v; want ErrUnavailable", err)
		}
		held := l.held(a, lock(second))
		time.Sleep(20 * time.Second)
		l.want(true, held, "after the late transaction of the caller before")
	})
}

func TestALeaseOfAnotherStoreHasNoCondition(t *testing.T) {
	withLedger(t, func(l ledger) {
		a, b := start(l.T, l.server), start(l.T, l.server)
		lease := a.lock(l.T, "k")
		if _, err := b.store.Held(l.Context(), lease); !errors.Is(err, core.ErrConfig) {
			l.Errorf("%v; want ErrConfig", err)
		}
		if _, err := a.store.Held(l.Context(), (*core.Lease)(nil)); !errors.Is(err, core.ErrNoLease) {
			l.Errorf("no lease: %v; want ErrNoLease", err)
		}
		ctx, cancel := context.WithTimeout(l.Context(), time.Minute)
		defer cancel()
		a.cut.Store(true)
		if _, err := a.store.Held(ctx, lease); !errors.Is(err, core.ErrUnavailable) {
			l.Errorf("without the server: %v; want ErrUnavailable", err)
		}
	})
}

func TestASweepEndsTheConditionWithTheLock(t *testing.T) {
	withLedger(t, func(l ledger) {
		a, b := start(l.T, l.server), start(l.T, l.server)
		held := l.held(a, a.lock(l.T, "orphaned"))
		b.lock(l.T, "held")
		time.Sleep(time.Minute)
		a.cut.Store(true)
		time.Sleep(4 * time.Hour)
		l.want(false, held, "swept")
		if left := named(l.server, "orphaned"); len(left) > 0 {
			l.Errorf("%+v is left", left)
		}
	})
}
