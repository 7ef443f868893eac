package core_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/driver"
	"github.com/interlock-go/interlock/core/memstore"
	"github.com/interlock-go/interlock/core/observe"
)

// A test for each fault, or near fault, that a lock of this library once had.

func TestLosingTheNewKeyOfAPartlyReenteredLockAllEndsItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStore()
		l := newLocker(t, s, core.Watchdog(9*time.Second))
		outer := held(t, l, t.Context(), "a")
		both, err := l.LockAll(outer.Context(), []string{"a", "b"})
		if err != nil {
			t.Fatal(err)
		}
		s.Expire("b")
		<-both.Context().Done()
		wantErr(t, context.Cause(both.Context()), core.ErrLost)
		if err := outer.Context().Err(); err != nil {
			t.Errorf("the outer lease ended too: %v", err)
		}
		wantErr(t, both.Release(t.Context()), core.ErrLost)
		release(t, outer)
	})
}

func TestReleasingAPartlyReenteredLockAllEndsItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStore()
		l := newLocker(t, s)
		outer := held(t, l, t.Context(), "a")
		both, err := l.LockAll(outer.Context(), []string{"a", "b"})
		if err != nil {
			t.Fatal(err)
		}
		release(t, both)
		wantErr(t, context.Cause(both.Context()), core.ErrReleased)
		if s.holder("b") != "" || s.holder("a") == "" {
			t.Errorf("a is held by %q, b by %q", s.holder("a"), s.holder("b"))
		}
		release(t, outer)
	})
}

func TestAHeadBehindATryLockAsksForItself(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStore()
		l, other := newLocker(t, s), newLocker(t, s)
		lease := held(t, other, t.Context(), "k")
		s.Intercept(always(memstore.Fault{After: time.Millisecond}))
		go func() { _, _ = l.TryLock(t.Context(), "k") }() // enters no list
		synctest.Wait()
		got := make(chan time.Duration, 1)
		begin := time.Now()
		go func() {
			second := held(t, l, t.Context(), "k")
			got <- time.Since(begin)
			release(t, second)
		}()
		time.Sleep(time.Second)
		s.Intercept(nil)
		release(t, lease)
		if d := <-got; d > 2*time.Second {
			t.Errorf("it slept on a free key for %v", d)
		}
	})
}

func TestASignalWhileNobodyWaitsButARequestFliesIsKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStore()
		l, other := newLocker(t, s), newLocker(t, s)
		lease := held(t, other, t.Context(), "k")
		// The first head gets as far as watching.
		ctx, cancel := context.WithCancel(t.Context())
		go func() { _, _ = l.Lock(ctx, "k") }()
		synctest.Wait()
		// Its next try is on its way, executed, when it leaves and the lock goes.
		s.Intercept(always(memstore.Fault{After: time.Second}))
		for _, hear := range s.hearers {
			go hear(driver.Call{What: driver.Turn, Key: "k"})
		}
		synctest.Wait()
		cancel()
		synctest.Wait()
		s.Intercept(nil)
		release(t, lease)
		begin := time.Now()
		second := held(t, l, t.Context(), "k", core.Wait(20*time.Second))
		if d := time.Since(begin); d > 2*time.Second {
			t.Errorf("it slept on a free key for %v", d)
		}
		release(t, second)
	})
}

func TestWaitBoundsTheWholeOfALockAll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStore()
		l, other := newLocker(t, s), newLocker(t, s)
		a, b := held(t, other, t.Context(), "a"), held(t, other, t.Context(), "b")
		time.AfterFunc(900*time.Millisecond, func() { release(t, a) })
		begin := time.Now()
		_, err := l.LockAll(t.Context(), []string{"a", "b"}, core.Wait(time.Second))
		wantErr(t, err, core.ErrHeld)
		if d := time.Since(begin); d > 1010*time.Millisecond {
			t.Errorf("it took %v, want the wait of 1 s for all", d)
		}
		release(t, b)
		time.Sleep(time.Second)
		if s.holder("a") != "" {
			t.Error("a failed LockAll kept a lock")
		}
	})
}

func TestCloseWaitsForGrantsOnTheirWay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStore()
		l, err := core.New(s)
		if err != nil {
			t.Fatal(err)
		}
		s.Intercept(always(memstore.Fault{After: time.Second}))
		go func() { _, _ = l.Lock(t.Context(), "k") }()
		synctest.Wait()
		if err := l.Close(t.Context()); err != nil {
			t.Error(err)
		}
		if h := s.holder("k"); h != "" {
			t.Errorf("after Close %s holds a lock that nobody was given", h)
		}
	})
}

func TestClosingNeverDeletesTheKeyOfARunningHandler(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStore()
		l, err := core.New(ambiguous{s})
		if err != nil {
			t.Fatal(err)
		}
		lease := held(t, l, t.Context(), "k")
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_ = l.Close(ctx)
		time.Sleep(time.Second)
		if s.holder("k") == "" {
			t.Error("it was deleted")
		}
		_ = lease.Release(t.Context())
	})
}

// ambiguous is a store that had to repeat every request.
type ambiguous struct{ *notedStore }

func (s ambiguous) Acquire(ctx context.Context, req driver.AcquireRequest) (driver.Reply, error) {
	rep, err := s.notedStore.Acquire(ctx, req)
	rep.Ambiguous = true
	return rep, err
}

func TestAFixedLeaseIsGoodAgainWhenCheckedAfterASuspension(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLocker(t, newStore())
		lease := held(t, l, t.Context(), "k", core.TTL(time.Minute))
		time.Sleep(time.Second)
		core.SetWall(l, func() time.Time { return time.Now().Add(10 * time.Minute) })
		wantErr(t, lease.Err(), core.ErrLost)
		core.SetWall(l, nil) // from here the clocks agree again
		time.Sleep(time.Second)
		if err := lease.Check(t.Context()); err != nil {
			t.Errorf("Check: %v", err)
		}
		if err := lease.Err(); err != nil {
			t.Errorf("Err after a Check: %v", err)
		}
		release(t, lease)
	})
}

func TestAReleaseOfAMaxHeldLeaseStillFreesTheLock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStore()
		l := newLocker(t, s)
		lease := held(t, l, t.Context(), "k", core.MaxHold(time.Second))
		<-lease.Context().Done()
		release(t, lease)
		if s.holder("k") != "" {
			t.Error("it is still held")
		}
	})
}

func TestAnObserverThatTakesItsTimeDoesNotLengthenTheWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLocker(t, newStore(), core.WithObserver(slow{}))
		lease := held(t, l, t.Context(), "k")
		begin := time.Now()
		_, err := l.Lock(t.Context(), "k", core.Wait(time.Second))
		wantErr(t, err, core.ErrHeld)
		if d := time.Since(begin); d > 1100*time.Millisecond {
			t.Errorf("it took %v, want the wait of 1 s", d)
		}
		release(t, lease)
	})
}

// slow is an observer that takes its time.
type slow struct{}

func (slow) Start(ctx context.Context, _ observe.Operation) (context.Context, observe.Observation) {
	time.Sleep(900 * time.Millisecond)
	return ctx, observe.Observation{}
}

func TestChecksThatFailDoNotPutTheRenewalOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStore()
		l := newLocker(t, s, core.Watchdog(9*time.Second))
		lease := held(t, l, t.Context(), "k")
		for range 100 {
			s.Intercept(always(memstore.Unreachable))
			wantErr(t, lease.Check(t.Context()), core.ErrUnavailable)
			s.Intercept(nil)
			time.Sleep(200 * time.Millisecond)
		}
		if err := lease.Err(); err != nil {
			t.Error(err)
		}
		release(t, lease)
	})
}
