package core_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/driver"
	"github.com/interlock-go/interlock/core/memstore"
	"github.com/interlock-go/interlock/core/observe"
	_ "github.com/interlock-go/interlock/internal/bubble"
	"github.com/interlock-go/interlock/internal/logtest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// held takes a lock or fails the test.
func held(t *testing.T, l *core.Locker, ctx context.Context, key string, opts ...core.Option) *core.Lease { //nolint:revive // t first
	t.Helper()
	lease, err := l.Lock(ctx, key, opts...)
	if err != nil {
		t.Fatalf("Lock(%q): %v", key, err)
	}
	return lease
}

func release(t *testing.T, lease *core.Lease) {
	t.Helper()
	if err := lease.Release(context.Background()); err != nil {
		t.Errorf("Release(%q): %v", lease.Key(), err)
	}
}

func wantErr(t *testing.T, err, want error) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Errorf("error is %v, want %v", err, want)
	}
}

func TestUncontendedLockCostsOneAcquireAndOneRelease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStore()
		l := newLocker(t, s, core.Watchdog(30*time.Second))
		lease := held(t, l, t.Context(), "k")
		time.Sleep(9 * time.Second) // less than a third of the lease
		release(t, lease)
		if a, r, all := s.count(memstore.Acquire), s.count(memstore.Release), s.count(""); a != 1 || r != 1 || all != 2 {
			t.Errorf("%d acquires, %d releases, %d in all; want 1, 1, 2", a, r, all)
		}
	})
}

func TestWatchdogRenewsAtAThirdAndStopsWithTheRelease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStore()
		l := newLocker(t, s, core.Watchdog(30*time.Second))
		lease := held(t, l, t.Context(), "k")
		time.Sleep(95 * time.Second)
		if n := s.count(memstore.Renew); n != 9 {
			t.Errorf("%d renewals in 95 s of a 30 s lease, want 9", n)
		}
		if err := lease.Err(); err != nil {
			t.Errorf("Err: %v", err)
		}
		release(t, lease)
		s.forget()
		time.Sleep(time.Minute)
		if n := s.count(""); n != 0 {
			t.Errorf("%d requests after the release", n)
		}
	})
}

// At the instant of the deadline the watchdog and the release meet in any order,
// and a busy machine lets the release come long before a watchdog that is due.
func TestALeaseReleasedAfterItsDeadlineIsLostWhoeverSeesItFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLocker(t, newStore())
		for range 100 {
			lease := held(t, l, t.Context(), "k", core.TTL(time.Second))
			time.Sleep(time.Until(lease.Deadline()))
			wantErr(t, lease.Release(t.Context()), core.ErrLost)
			wantErr(t, lease.Err(), core.ErrLost)
			wantErr(t, context.Cause(lease.Context()), core.ErrLost)
		}
	})
}

func TestTryLockIsNotRefusedForALeaseThatIsOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStore()
		l := newLocker(t, s)
		for range 100 {
			over := held(t, l, t.Context(), "k", core.TTL(time.Second))
			time.Sleep(time.Until(over.Deadline()))
			s.Expire("k") // as if the server's TTL were over too
			next, err := l.TryLock(t.Context(), "k")
			if err != nil {
				t.Fatal(err)
			}
			if next.Token() <= over.Token() {
				t.Errorf("token %d after %d", next.Token(), over.Token())
			}
			wantErr(t, over.Err(), core.ErrLost)
			wantErr(t, over.Release(t.Context()), core.ErrLost)
			release(t, next)
		}
	})
}

// A release that gets no answer keeps no caller of the process out once the lease that it
// gives up has ended, at any time.
func TestTryLockIsNotRefusedForAReleaseOfALeaseThatIsOver(t *testing.T) {
	for name, early := range map[string]time.Duration{"released in time": time.Second, "released too late": 0} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newStore()
				l := newLocker(t, s)
				over := held(t, l, t.Context(), "k", core.TTL(10*time.Second))
				time.Sleep(time.Until(over.Deadline()) - early)
				s.Intercept(during(memstore.Release, memstore.Fault{Before: time.Minute}))
				go func() { _ = over.Release(t.Context()) }()
				synctest.Wait()
				if early > 0 {
					_, err := l.TryLock(t.Context(), "k")
					wantErr(t, err, core.ErrUnavailable) // whether it is free nobody can say
				}
				time.Sleep(time.Until(over.Deadline()))
				s.Expire("k") // as if the server's TTL were over too
				next, err := l.TryLock(t.Context(), "k")
				if err != nil {
					t.Fatal(err)
				}
				time.Sleep(2 * time.Minute) // the answer to that release must not touch the next hold
				s.Intercept(nil)
				if err := next.Err(); err != nil {
					t.Error(err)
				}
				release(t, next)
			})
		})
	}
}

// The store may have carried out a release, and have given the lock to others, who have
// released it, before the answer to that release is here.
func TestTryLockWaitsForTheAnswerToARelease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStore()
		l := newLocker(t, s)
		lease := held(t, l, t.Context(), "k")
		s.Intercept(during(memstore.Release, memstore.Fault{After: 100 * time.Millisecond}))
		released := make(chan error)
		go func() { released <- lease.Release(t.Context()) }()
		synctest.Wait()
		next, err := l.TryLock(t.Context(), "k")
		if err != nil {
			t.Fatalf("the lock is free: %v", err)
		}
		wantErr(t, <-released, nil)
		s.Intercept(nil)
		release(t, next)
	})
}

func TestFixedLeaseIsNotRenewedAndEndsByItself(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStore()
		var loss atomic.Pointer[core.Loss]
		l := newLocker(t, s, core.OnLost(func(x core.Loss) { loss.Store(&x) }))
		begin := time.Now()
		lease := held(t, l, t.Context(), "k", core.TTL(10*time.Second))
		<-lease.Context().Done()
		if d := time.Since(begin); d > 10*time.Second-100*time.Millisecond || d < 9*time.Second {
			t.Errorf("the context ended after %v, want 10 s less 1 %% and 2 ms", d)
		}
		wantErr(t, context.Cause(lease.Context()), core.ErrLost)
		wantErr(t, lease.Err(), core.ErrLost)
		wantErr(t, lease.Release(t.Context()), core.ErrLost)
		synctest.Wait()
		if n := s.count(memstore.Renew); n != 0 {
			t.Errorf("%d renewals", n)
		}
		if x := loss.Load(); x == nil || x.Reason != observe.LossExpired || x.Key != "k" {
			t.Errorf("OnLost got %+v", x)
		}
		if h := s.holder("k"); h == "" {
			t.Error("the lock was freed before the end of its TTL: work that cannot be interrupted relies on it")
		}
	})
}

func TestWaitersGetTheLockInArrivalOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const n = 1000
		s := newStore()
		l := newLocker(t, s)
		first := held(t, l, t.Context(), "k")
		var order []int
		var tokens []int64
		var wg sync.WaitGroup
		for i := range n {
			wg.Go(func() {
				lease := held(t, l, t.Context(), "k")
				order = append(order, i) // the lock is what guards it
				tokens = append(tokens, lease.Token())
				release(t, lease)
			})
			synctest.Wait() // it waits now
		}
		s.forget()
		release(t, first)
		wg.Wait()
		if len(order) != n || !slices.IsSorted(order) {
			t.Errorf("%d got it, in order: %v", len(order), slices.IsSorted(order))
		}
		if !slices.IsSorted(tokens) || len(slices.Compact(tokens)) != n || tokens[0] <= first.Token() {
			t.Error("the tokens do not grow from grant to grant")
		}
		if c := s.count(""); c != 1 {
			t.Errorf("%d requests for %d hand-offs, want the last release alone", c, n)
		}
	})
}

func TestReentryAddsAHoldWithoutTheStore(t *testing.T) {
	for _, outerFirst := range []bool{false, true} {
		t.Run(fmt.Sprintf("outerFirst=%v", outerFirst), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newStore()
				l := newLocker(t, s)
				outer := held(t, l, t.Context(), "k")
				s.forget()
				inner := held(t, l, outer.Context(), "k", core.TTL(time.Second)) // its TTL does not apply
				innermost := held(t, l, inner.Context(), "k")
				if s.count("") != 0 {
					t.Error("re-entry asked the store")
				}
				if inner.Token() != outer.Token() {
					t.Error("re-entry changed the token")
				}
				a, b := inner, outer
				if outerFirst {
					a, b = outer, inner
				}
				release(t, a)
				release(t, a) // safe twice, and counts once
				release(t, b)
				if s.holder("k") == "" {
					t.Fatal("the lock went before the last hold")
				}
				time.Sleep(2 * time.Second)
				if err := innermost.Context().Err(); err != nil {
					t.Fatalf("the last hold's context: %v", err)
				}
				if err := innermost.Err(); err != nil {
					t.Fatalf("the last hold: %v", err)
				}
				release(t, innermost)
				if s.holder("k") != "" {
					t.Error("the lock outlived its last hold")
				}
				for _, lease := range []*core.Lease{outer, inner, innermost} {
					wantErr(t, context.Cause(lease.Context()), core.ErrReleased)
				}
				_, err := l.Lock(outer.Context(), "k")
				wantErr(t, err, core.ErrReleased) // the context has ended, as any other
			})
		})
	}
}

func TestLockUnderAReleasedLeaseIsAnOrdinaryLock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStore()
		l := newLocker(t, s)
		outer := held(t, l, t.Context(), "k")
		ctx := context.WithoutCancel(outer.Context())
		release(t, outer)
		second := held(t, l, ctx, "k")
		if second.Token() <= outer.Token() {
			t.Error("it entered a lock that was gone")
		}
		release(t, second)
	})
}

func TestAContextWithoutTheLeaseWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLocker(t, newStore())
		outer := held(t, l, t.Context(), "k")
		_, err := l.TryLock(t.Context(), "k")
		wantErr(t, err, core.ErrHeld)
		_, err = l.Lock(t.Context(), "k", core.Wait(time.Second))
		wantErr(t, err, core.ErrHeld)
		release(t, outer)
	})
}

func TestUnreachableStoreEndsTheContextBeforeTheServersTTL(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStore()
		l := newLocker(t, s, core.Watchdog(9*time.Second))
		lease := held(t, l, t.Context(), "k")
		down := always(memstore.Unreachable)
		time.Sleep(4 * time.Second) // renewed once, at 3 s
		s.Intercept(down)
		<-lease.Context().Done()
		wantErr(t, context.Cause(lease.Context()), core.ErrLost)
		if s.holder("k") == "" {
			t.Error("the context ended after the server's TTL")
		}
		s.Intercept(nil)
		rep, err := s.Acquire(t.Context(), driver.AcquireRequest{Key: "k", Owner: "another", TTL: time.Second})
		if left := rep.TTL; err != nil || left > time.Second {
			t.Errorf("the context ended %v before the server's TTL; it could have been used longer", left)
		}
		wantErr(t, lease.Release(t.Context()), core.ErrLost)
	})
}

func TestStoreBackWithinTheTTLLosesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStore()
		l := newLocker(t, s, core.Watchdog(9*time.Second), core.OnLost(func(core.Loss) { t.Error("lost") }))
		lease := held(t, l, t.Context(), "k")
		s.Intercept(always(memstore.Unreachable))
		time.Sleep(8 * time.Second)
		s.Intercept(nil)
		time.Sleep(time.Minute)
		if err := lease.Err(); err != nil {
			t.Errorf("Err: %v", err)
		}
		release(t, lease)
	})
}

func TestAHangingStoreEndsTheContextInTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStore()
		l := newLocker(t, s, core.Watchdog(9*time.Second))
		begin := time.Now()
		lease := held(t, l, t.Context(), "k")
		s.Intercept(during(memstore.Renew, memstore.Fault{Before: time.Hour})) // ends with its bound, unexecuted
		<-lease.Context().Done()
		if d := time.Since(begin); d >= 9*time.Second {
			t.Errorf("the context ended after %v of a 9 s lease", d)
		}
		if n := s.count(memstore.Renew); n < 3 {
			t.Errorf("%d tries to renew, want several, each with a bound", n)
		}
		_ = lease.Release(t.Context())
	})
}

func TestALateRenewalRevivesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStore()
		l := newLocker(t, s, core.Watchdog(6*time.Second))
		lease := held(t, l, t.Context(), "k")
		s.Intercept(during(memstore.Renew, memstore.Fault{After: 10 * time.Second})) // executed, the reply too late
		<-lease.Context().Done()
		time.Sleep(time.Minute)
		wantErr(t, lease.Err(), core.ErrLost)
		wantErr(t, lease.Release(t.Context()), core.ErrLost)
		if s.holder("k") != "" {
			t.Error("a lost lease still holds the lock")
		}
	})
}

func TestLosingTheLockIsNoticedAtTheNextRenewal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStore()
		var loss atomic.Pointer[core.Loss]
		l := newLocker(t, s, core.Watchdog(9*time.Second), core.OnLost(func(x core.Loss) { loss.Store(&x) }), core.Name("rule"))
		begin := time.Now()
		lease := held(t, l, t.Context(), "k")
		s.Take("k", time.Hour)
		<-lease.Context().Done()
		if d := time.Since(begin); d > 3*time.Second+time.Millisecond {
			t.Errorf("noticed after %v, want a third of the lease", d)
		}
		wantErr(t, lease.Err(), core.ErrLost)
		wantErr(t, lease.Err(), driver.ErrNotOwner)
		wantErr(t, lease.Release(t.Context()), core.ErrLost)
		if s.holder("k") != "another-process:1" {
			t.Error("the loser freed somebody else's lock")
		}
		synctest.Wait()
		if x := loss.Load(); x == nil || x.Reason != observe.LossTakenOver || x.Rule != "rule" || x.Held != time.Since(begin) {
			t.Errorf("OnLost got %+v", x)
		}
	})
}

func TestReleaseOfALockTakenOverSaysLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStore()
		losses := make(chan core.Loss, 1)
		l := newLocker(t, s, core.OnLost(func(x core.Loss) { losses <- x }))
		lease := held(t, l, t.Context(), "k")
		s.Take("k", time.Hour)
		err := lease.Release(t.Context())
		wantErr(t, err, core.ErrLost)
		wantErr(t, err, driver.ErrNotOwner)
		if again := lease.Release(t.Context()); !errors.Is(again, core.ErrLost) {
			t.Errorf("the second Release says %v, want what the first said", again)
		}
		if x := <-losses; x.Reason != observe.LossTakenOver || x.Token != lease.Token() {
			t.Errorf("OnLost got %+v", x)
		}
		if s.holder("k") != "another-process:1" {
			t.Error("it freed somebody else's lock")
		}
	})
}

func TestALoserThatIgnoresItsContextHoldsNobodyUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStore()
		l := newLocker(t, s, core.Watchdog(9*time.Second))
		loser := held(t, l, t.Context(), "k")
		s.Expire("k")
		begin := time.Now()
		next := held(t, l, t.Context(), "k")
		if d := time.Since(begin); d > 4*time.Second {
			t.Errorf("the next waiter got it after %v", d)
		}
		if next.Token() <= loser.Token() {
			t.Error("the token did not grow")
		}
		wantErr(t, loser.Release(t.Context()), core.ErrLost)
		if err := next.Err(); err != nil || s.holder("k") == "" {
			t.Errorf("the loser's release touched the next tenure: %v", err)
		}
		release(t, next)
	})
}

func TestReleaseWorksOnADeadContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStore()
		l := newLocker(t, s)
		ctx, cancel := context.WithCancel(t.Context())
		lease := held(t, l, ctx, "k")
		cancel()
		if err := lease.Release(ctx); err != nil {
			t.Errorf("Release: %v", err)
		}
		if s.holder("k") != "" {
			t.Error("the lock is still held")
		}
	})
}

func TestAnUnansweredReleaseIsFinishedInTheBackground(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStore()
		l := newLocker(t, s, core.Watchdog(30*time.Second))
		lease := held(t, l, t.Context(), "k")
		s.Intercept(always(memstore.Unreachable))
		wantErr(t, lease.Release(t.Context()), core.ErrUnavailable)
		time.Sleep(time.Second)
		s.Intercept(nil)
		time.Sleep(11 * time.Second) // the next round of the reaper
		if h := s.holder("k"); h != "" {
			t.Errorf("%s still has it", h)
		}
		time.Sleep(time.Minute)
		if n := core.Orphans(l); n != 0 {
			t.Errorf("the reaper still looks after %d owners", n)
		}
	})
}

func TestACancelledAcquireInFlightGoesToTheNextWaiter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStore()
		l := newLocker(t, s)
		s.Intercept(always(memstore.Fault{After: time.Second}))
		ctx, cancel := context.WithCancelCause(t.Context())
		why := errors.New("the client left")
		begin := time.Now()
		first := make(chan error)
		go func() {
			_, err := l.Lock(ctx, "k")
			first <- err
		}()
		synctest.Wait()
		second := make(chan *core.Lease)
		go func() { second <- held(t, l, t.Context(), "k") }()
		synctest.Wait()
		cancel(why)
		wantErr(t, <-first, why)
		if d := time.Since(begin); d != 0 {
			t.Errorf("the caller walked away after %v, want at once", d)
		}
		lease := <-second
		if n := s.count(memstore.Acquire); n != 1 {
			t.Errorf("%d acquires, want the one in flight to serve the next", n)
		}
		s.Intercept(nil)
		release(t, lease)
	})
}

func TestACancelledAcquireLeavesNoOrphan(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStore()
		l := newLocker(t, s)
		s.Intercept(always(memstore.Fault{After: time.Second}))
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		_, err := l.Lock(ctx, "k")
		wantErr(t, err, context.DeadlineExceeded)
		time.Sleep(3 * time.Second)
		if h := s.holder("k"); h != "" {
			t.Errorf("%s holds the lock of a caller that left", h)
		}
	})
}

func TestALateAcquireOfALostRequestIsReleased(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStore()
		l := newLocker(t, s, core.Watchdog(30*time.Second))
		s.Intercept(during(memstore.Acquire, memstore.LostRequest))
		_, err := l.Lock(t.Context(), "k")
		wantErr(t, err, core.ErrUnavailable)
		owner := s.seen(memstore.Acquire)[0].Owner
		s.Intercept(nil)
		time.Sleep(time.Second)
		s.late(t, "k", owner, 30*time.Second) // it is executed only now
		begin := time.Now()
		lease := held(t, l, t.Context(), "k")
		if d := time.Since(begin); d > time.Second {
			t.Errorf("our own late acquire kept us out for %v", d)
		}
		for _, r := range s.seen(memstore.Acquire)[2:] {
			if r.Owner == owner {
				t.Error("an owner whose request has an unknown outcome was used again")
			}
		}
		release(t, lease)
	})
}

func TestAGrantPastItsDeadlineIsReleased(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStore()
		l := newLocker(t, s, core.Watchdog(time.Second))
		n := 0
		s.Intercept(func(r memstore.Request) memstore.Fault {
			if r.Op == memstore.Acquire {
				if n++; n == 1 {
					return memstore.Fault{After: 990 * time.Millisecond}
				}
			}
			return memstore.Fault{}
		})
		lease := held(t, l, t.Context(), "k")
		if n < 2 {
			t.Error("a grant that was over when it came was returned")
		}
		if left := time.Until(lease.Deadline()); left < 900*time.Millisecond {
			t.Errorf("%v are left of a lease of 1 s", left)
		}
		release(t, lease)
		// A lease counts from the sending of its request.
		s.Intercept(func(memstore.Request) memstore.Fault { return memstore.Fault{After: 700 * time.Millisecond} })
		late := held(t, l, t.Context(), "late")
		if left := time.Until(late.Deadline()); left > 300*time.Millisecond {
			t.Errorf("%v are left of a lease of 1 s, 700 ms after it was asked for", left)
		}
		s.Intercept(nil)
		release(t, late)
	})
}

func TestAStoreErrorIsGivenToTheWholeQueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStore()
		l := newLocker(t, s)
		s.Intercept(func(memstore.Request) memstore.Fault {
			return memstore.Fault{After: time.Second, Err: core.ErrUnavailable}
		})
		begin := time.Now()
		var wg sync.WaitGroup
		for range 100 {
			wg.Go(func() {
				_, err := l.Lock(t.Context(), "k")
				wantErr(t, err, core.ErrUnavailable)
			})
		}
		wg.Wait()
		if d := time.Since(begin); d > time.Second {
			t.Errorf("it took %v: one after the other", d)
		}
	})
}

func TestANotReadyStoreIsTriedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStore()
		l := newLocker(t, s)
		notReady := always(memstore.Fault{Err: driver.ErrNotReady})
		s.Intercept(notReady)
		_, err := l.TryLock(t.Context(), "k")
		wantErr(t, err, core.ErrUnavailable)
		_, err = l.Lock(t.Context(), "k", core.Wait(3*time.Second))
		wantErr(t, err, core.ErrUnavailable)
		wantErr(t, err, driver.ErrNotReady)
		time.AfterFunc(10*time.Second, func() { s.Intercept(nil) })
		release(t, held(t, l, t.Context(), "k"))
		if n := s.count(memstore.Acquire); n > 40 {
			t.Errorf("%d tries: no back-off", n)
		}
	})
}

// A primary that became a standby may only read for as long as it runs.
func TestACallerThatWaitsForLongIsNotLeftInTheDark(t *testing.T) {
	for name, opts := range map[string][]core.Option{"without a bound": nil, "with a long one": {core.Wait(time.Hour)}} {
		t.Run(name, func(t *testing.T) { notLeftInTheDark(t, opts) })
	}
}

func notLeftInTheDark(t *testing.T, opts []core.Option) {
	t.Helper()
	text := logtest.Default(t).String
	lines := func() int { return strings.Count(text(), "callers wait for it") }
	synctest.Test(t, func(t *testing.T) {
		s := newStore()
		l := newLocker(t, s)
		s.Intercept(always(memstore.Fault{Err: fmt.Errorf("%w: it only reads", driver.ErrNotReady)}))
		_, err := l.Lock(t.Context(), "k", core.Wait(3*time.Second))
		wantErr(t, err, core.ErrUnavailable)
		if n := lines(); n != 0 {
			t.Errorf("%d lines about a caller that gets an error; want none", n)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
		defer cancel()
		failed := make(chan error)
		go func() {
			_, err := l.Lock(ctx, "k", opts...)
			failed <- err
		}()
		for _, want := range []int{1, 2} {
			time.Sleep(3 * time.Second)
			synctest.Wait()
			if n := lines(); n != want {
				t.Errorf("%d lines; want %d", n, want)
			}
			time.Sleep(57 * time.Second)
		}
		err = <-failed
		wantErr(t, err, context.DeadlineExceeded)
		wantErr(t, err, driver.ErrNotReady)
		if n := strings.Count(text(), "it only reads"); n != 2 {
			t.Errorf("%d lines have the cause; want 2", n)
		}
	})
}

func TestWaitBoundsAndMaxWaitersRefuse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLocker(t, newStore())
		lease := held(t, l, t.Context(), "k")
		begin := time.Now()
		go func() {
			_, err := l.Lock(t.Context(), "k", core.Wait(2*time.Second))
			wantErr(t, err, core.ErrHeld)
			if d := time.Since(begin); d != 2*time.Second {
				t.Errorf("it waited %v, want 2 s", d)
			}
		}()
		synctest.Wait()
		_, err := l.Lock(t.Context(), "k", core.MaxWaiters(1))
		wantErr(t, err, core.ErrQueueFull)
		wantErr(t, err, core.ErrHeld)
		time.Sleep(3 * time.Second)
		release(t, lease)
	})
}

func TestMaxHoldEndsTheContextAndTheRenewals(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStore()
		var loss atomic.Pointer[core.Loss]
		l := newLocker(t, s, core.Watchdog(9*time.Second), core.OnLost(func(x core.Loss) { loss.Store(&x) }))
		begin := time.Now()
		lease := held(t, l, t.Context(), "k", core.MaxHold(20*time.Second))
		<-lease.Context().Done()
		if d := time.Since(begin); d != 20*time.Second {
			t.Errorf("ended after %v, want 20 s", d)
		}
		wantErr(t, context.Cause(lease.Context()), core.ErrMaxHold)
		wantErr(t, lease.Err(), core.ErrMaxHold)
		_, err := l.Lock(context.WithoutCancel(lease.Context()), "k")
		wantErr(t, err, core.ErrMaxHold)
		next := held(t, l, t.Context(), "k") // it comes with the TTL
		if d := time.Since(begin); d > 30*time.Second {
			t.Errorf("the key went after %v", d)
		}
		wantErr(t, lease.Release(t.Context()), core.ErrMaxHold)
		release(t, next)
		if x := loss.Load(); x == nil || x.Reason != observe.LossMaxHold {
			t.Errorf("OnLost got %+v", x)
		}
	})
}

func TestLockAllTakesAllOrNone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStore()
		l := newLocker(t, s)
		lease, err := l.LockAll(t.Context(), []string{"c", "a", "b", "a"})
		if err != nil {
			t.Fatal(err)
		}
		if got := lease.Keys(); !slices.Equal(got, []string{"a", "b", "c"}) {
			t.Errorf("Keys: %v", got)
		}
		for _, key := range lease.Keys() {
			if tok, ok := lease.TokenFor(key); !ok || tok == 0 {
				t.Errorf("no token for %s", key)
			}
		}
		_, err = l.LockAll(t.Context(), []string{"c", "d"}, core.Wait(time.Second))
		wantErr(t, err, core.ErrHeld)
		release(t, lease)
		again, err := l.LockAll(t.Context(), []string{"d", "e"}, core.Wait(0))
		if err != nil {
			t.Fatalf("a failed LockAll left something behind: %v", err)
		}
		release(t, again)
	})
}

func TestLosingOneOfSeveralLosesAll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStore()
		l := newLocker(t, s, core.Watchdog(9*time.Second))
		lease, err := l.LockAll(t.Context(), []string{"a", "b"})
		if err != nil {
			t.Fatal(err)
		}
		s.Expire("b")
		<-lease.Context().Done()
		wantErr(t, context.Cause(lease.Context()), core.ErrLost)
		wantErr(t, lease.Release(t.Context()), core.ErrLost)
		if s.holder("a") != "" {
			t.Error("a is still held")
		}
	})
}

func TestLockAllKeepsEarlierKeysWhileItWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStore()
		l, other := newLocker(t, s), newLocker(t, s)
		blocker := held(t, other, t.Context(), "b")
		time.AfterFunc(25*time.Second, func() { release(t, blocker) })
		lease, err := l.LockAll(t.Context(), []string{"a", "b"}, core.TTL(10*time.Second))
		if err != nil {
			t.Fatal(err)
		}
		if left := time.Until(lease.Deadline()); left < 9*time.Second {
			t.Errorf("%v are left, want the whole TTL on all keys", left)
		}
		s.forget()
		<-lease.Context().Done()
		wantErr(t, context.Cause(lease.Context()), core.ErrLost)
		if s.count(memstore.Renew) != 0 {
			t.Error("a fixed lease was renewed")
		}
		_ = lease.Release(t.Context())
	})
}

func TestLockAllInOppositeOrdersDoesNotDeadlock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStore()
		l, other := newLocker(t, s), newLocker(t, s)
		var wg sync.WaitGroup
		for i := range 200 {
			keys := []string{"a", "b", "c"}
			if i%2 == 1 {
				slices.Reverse(keys)
			}
			from := l
			if i%3 == 0 {
				from = other
			}
			wg.Go(func() {
				lease, err := from.LockAll(t.Context(), keys)
				if err != nil {
					t.Error(err)
					return
				}
				time.Sleep(time.Millisecond)
				release(t, lease)
			})
		}
		wg.Wait()
	})
}

func TestContextsThatWidenTheirLocksAgainstEachOtherGetErrHeld(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLocker(t, newStore())
		a, b := held(t, l, t.Context(), "a"), held(t, l, t.Context(), "b")
		begin := time.Now()
		var wg sync.WaitGroup
		var failed atomic.Int32
		for _, w := range []struct {
			lease *core.Lease
			key   string
		}{{a, "b"}, {b, "a"}} {
			wg.Go(func() {
				inner, err := l.Lock(w.lease.Context(), w.key)
				if err == nil {
					release(t, inner)
				} else {
					wantErr(t, err, core.ErrHeld)
					failed.Add(1)
				}
				release(t, w.lease)
			})
		}
		wg.Wait()
		if failed.Load() == 0 || time.Since(begin) > 6*time.Second {
			t.Errorf("%d refused after %v", failed.Load(), time.Since(begin))
		}
	})
}

func TestProcessesShareAHotKey(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStore()
		counts := make([]int, 4)
		var inside atomic.Int32
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
		defer cancel()
		var wg sync.WaitGroup
		for p := range counts {
			l := newLocker(t, s)
			for range 8 {
				wg.Go(func() {
					for {
						lease, err := l.Lock(ctx, "k")
						if err != nil {
							return
						}
						if inside.Add(1) != 1 {
							t.Error("two inside")
						}
						time.Sleep(time.Millisecond)
						inside.Add(-1)
						counts[p]++
						release(t, lease)
					}
				})
			}
		}
		wg.Wait()
		sum := 0
		for _, c := range counts {
			sum += c
		}
		for p, c := range counts {
			if fair := sum / len(counts); c < fair/2 || c > fair*2 {
				t.Errorf("process %d got %d of %d: %v", p, c, sum, counts)
			}
		}
		if sum < 1500 {
			t.Errorf("%d sections of 1 ms in 3 s", sum)
		}
	})
}

func TestASuspendedMachineConfirmsItsLeaseFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStore()
		l := newLocker(t, s)
		lease := held(t, l, t.Context(), "k")
		core.SetWall(l, func() time.Time { return time.Now().Add(10 * time.Minute) })
		wantErr(t, lease.Err(), core.ErrLost)
		synctest.Wait()
		if s.count(memstore.Renew) == 0 {
			t.Error("no renewal was asked for")
		}
		core.SetWall(l, nil)
		if err := lease.Check(t.Context()); err != nil {
			t.Errorf("Check after the renewal: %v", err)
		}
		release(t, lease)
	})
}

func TestCheckAsksTheStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStore()
		l := newLocker(t, s)
		lease := held(t, l, t.Context(), "k")
		if err := lease.Check(t.Context()); err != nil {
			t.Errorf("Check of a lock that is held: %v", err)
		}
		fixed := held(t, l, t.Context(), "fixed", core.TTL(10*time.Second))
		deadline := fixed.Deadline()
		time.Sleep(time.Second)
		if err := fixed.Check(t.Context()); err != nil || fixed.Deadline() != deadline {
			t.Errorf("Check of a fixed lease: %v, deadline moved by %v", err, fixed.Deadline().Sub(deadline))
		}
		s.Intercept(always(memstore.Unreachable))
		wantErr(t, lease.Check(t.Context()), core.ErrUnavailable)
		s.Intercept(nil)
		s.Take("k", time.Hour)
		wantErr(t, lease.Check(t.Context()), core.ErrLost)
		wantErr(t, context.Cause(lease.Context()), core.ErrLost)
		release(t, fixed)
		_ = lease.Release(t.Context())
	})
}

func TestCloseDrains(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStore()
		l := newLocker(t, s, core.Watchdog(9*time.Second))
		lease := held(t, l, t.Context(), "k")
		queued := make(chan error)
		go func() {
			_, err := l.Lock(t.Context(), "k")
			queued <- err
		}()
		synctest.Wait()
		closed := make(chan error)
		go func() { closed <- l.Close(t.Context()) }()
		synctest.Wait()
		wantErr(t, <-queued, core.ErrClosed)
		_, err := l.Lock(t.Context(), "other")
		wantErr(t, err, core.ErrClosed)
		release(t, held(t, l, lease.Context(), "k")) // a holder may re-enter
		time.Sleep(30 * time.Second)
		if err := lease.Err(); err != nil {
			t.Errorf("the lease was not renewed while draining: %v", err)
		}
		select {
		case err := <-closed:
			t.Errorf("Close returned %v while a lock was held", err)
		default:
		}
		release(t, lease)
		if err := <-closed; err != nil {
			t.Errorf("Close: %v", err)
		}
	})
}

func TestCloseGivesUpWithItsContextAndLeavesTheKeys(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStore()
		l, err := core.New(s)
		if err != nil {
			t.Fatal(err)
		}
		lease := held(t, l, t.Context(), "k")
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		wantErr(t, l.Close(ctx), context.DeadlineExceeded)
		wantErr(t, context.Cause(lease.Context()), core.ErrClosed)
		if s.holder("k") == "" {
			t.Error("the key of a running handler was deleted")
		}
		s.forget()
		time.Sleep(time.Minute)
		if s.count("") != 0 {
			t.Error("requests after Close")
		}
		wantErr(t, lease.Release(t.Context()), core.ErrLost)
	})
}

func TestHeldListsHoldersAndWaiters(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLocker(t, newStore())
		lease := held(t, l, t.Context(), "k", core.Name("rule"))
		inner := held(t, l, lease.Context(), "k")
		go func() { _, _ = l.Lock(t.Context(), "k", core.Wait(time.Second)) }()
		synctest.Wait()
		want := core.Holding{
			Key: "k", Held: true, Kind: "exclusive", Since: time.Now(), Token: lease.Token(), Rule: "rule", Holds: 2, Waiters: 1,
			Deadline: lease.Deadline(),
		}
		if got := l.Held(); len(got) != 1 || got[0] != want {
			t.Errorf("Held: %+v, want %+v", got, want)
		}
		time.Sleep(2 * time.Second)
		release(t, inner)
		release(t, lease)
		if got := l.Held(); len(got) != 0 {
			t.Errorf("Held: %+v", got)
		}
	})
}

// renewals is an Observer that counts renewals.
type renewals struct{ n atomic.Int64 }

func (r *renewals) Start(ctx context.Context, _ observe.Operation) (context.Context, observe.Observation) {
	return ctx, observe.Observation{Renewed: func(observe.Renewed) { r.n.Add(1) }}
}

// Callers that check before each commit would hide how renewals fare.
func TestChecksAreNotCountedAsRenewals(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, o := newStore(), &renewals{}
		l := newLocker(t, s, core.WithObserver(o))
		one := held(t, l, t.Context(), "one")
		place := held(t, l, t.Context(), "place", core.Shared())
		wantErr(t, one.Check(t.Context()), nil)
		wantErr(t, place.Check(t.Context()), nil)
		s.Intercept(func(memstore.Request) memstore.Fault { return memstore.Unreachable })
		wantErr(t, one.Check(t.Context()), core.ErrUnavailable)
		s.Intercept(nil)
		fixed, err := l.LockAll(t.Context(), []string{"a", "b"}, core.TTL(time.Minute)) // its leases are made longer at the end
		wantErr(t, err, nil)
		for _, h := range l.Held() {
			if h.Renewals != 0 {
				t.Errorf("%+v", h)
			}
		}
		if n := o.n.Load(); n != 0 {
			t.Errorf("the observer was told of %d renewals", n)
		}
		time.Sleep(15 * time.Second)
		// The check that failed had a renewal tried at once.
		if h := l.Held(); h[2].Renewals != 2 || h[3].Renewals != 1 || o.n.Load() != 3 {
			t.Errorf("%+v, %d told; want two renewals of one, and one of place", h, o.n.Load())
		}
		release(t, one)
		release(t, place)
		release(t, fixed)
	})
}

func TestHeldKnowsTheRenewalsOfEachLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStore()
		l := newLocker(t, s)
		one := held(t, l, t.Context(), "one")
		place := held(t, l, t.Context(), "place", core.Shared())
		time.Sleep(25 * time.Second) // two renewals of each
		for i, lease := range []*core.Lease{one, place} {
			if h := l.Held()[i]; h.Renewals != 2 || h.LastError != nil || !h.Deadline.Equal(lease.Deadline()) || time.Until(h.Deadline) < 20*time.Second {
				t.Errorf("%+v; the lease is good until %v", h, lease.Deadline())
			}
		}
		s.Intercept(func(r memstore.Request) memstore.Fault {
			return memstore.Fault{Err: core.ErrUnavailable, Executed: r.Op != memstore.Renew}
		})
		time.Sleep(10 * time.Second)
		for _, h := range l.Held() {
			if h.Renewals != 2 || !errors.Is(h.LastError, core.ErrUnavailable) {
				t.Errorf("%+v", h)
			}
		}
		s.Intercept(nil)
		time.Sleep(2 * time.Second)
		for _, h := range l.Held() {
			if h.Renewals != 3 || h.LastError != nil {
				t.Errorf("%+v", h)
			}
		}
		release(t, one)
		release(t, place)
	})
}

func TestDoReleasesAlsoOnPanic(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStore()
		l := newLocker(t, s, core.Watchdog(9*time.Second))
		func() {
			defer func() {
				if recover() != "boom" {
					t.Error("the panic did not pass through")
				}
			}()
			_ = l.Do(t.Context(), "k", func(context.Context) error { panic("boom") })
		}()
		if s.holder("k") != "" {
			t.Error("a panic left the lock behind")
		}
		err := l.Do(t.Context(), "k", func(ctx context.Context) error {
			s.Expire("k")
			<-ctx.Done()
			return nil
		})
		wantErr(t, err, core.ErrLost)
	})
}

func TestBadConfigurationIsRefusedWithWhatIsAccepted(t *testing.T) {
	l := newLocker(t, newStore())
	long := make([]byte, 513)
	for _, c := range []struct {
		name string
		err  func() error
		want error
		says string
	}{
		{"nil store", func() error { _, err := core.New(nil); return err }, core.ErrConfig, "redisstore.New"},
		{"zero TTL", func() error { _, err := l.Lock(t.Context(), "k", core.TTL(0)); return err }, core.ErrConfig, "at least 10ms"},
		{"negative TTL", func() error { _, err := l.Lock(t.Context(), "k", core.TTL(-1)); return err }, core.ErrConfig, "at least 10ms"},
		{"short TTL", func() error { _, err := l.Lock(t.Context(), "k", core.TTL(9*time.Millisecond)); return err }, core.ErrConfig, "at least 10ms"},
		{"short watchdog", func() error { _, err := core.New(newStore(), core.Watchdog(time.Millisecond)); return err }, core.ErrConfig, "at least 10ms"},
		{"both", func() error {
			_, err := l.Lock(t.Context(), "k", core.TTL(time.Second), core.Watchdog(time.Second))
			return err
		}, core.ErrConfig, "one of them"},
		{"negative wait", func() error { _, err := l.Lock(t.Context(), "k", core.Wait(-1)); return err }, core.ErrConfig, "not be negative"},
		{"no waiters", func() error { _, err := l.Lock(t.Context(), "k", core.MaxWaiters(0)); return err }, core.ErrConfig, "at least 1"},
		{"max hold", func() error { _, err := l.Lock(t.Context(), "k", core.MaxHold(0)); return err }, core.ErrConfig, "positive"},
		{"empty key", func() error { _, err := l.Lock(t.Context(), ""); return err }, core.ErrKey, "empty"},
		{"long key", func() error { _, err := l.Lock(t.Context(), string(long)); return err }, core.ErrKey, "at most 512"},
		{"no keys", func() error { _, err := l.LockAll(t.Context(), nil); return err }, core.ErrKey, "no key"},
	} {
		t.Run(c.name, func(t *testing.T) {
			err := c.err()
			wantErr(t, err, c.want)
			if err == nil || !strings.Contains(err.Error(), c.says) {
				t.Errorf("%v does not say %q", err, c.says)
			}
		})
	}
}
