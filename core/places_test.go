package core_test

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/memstore"
	"github.com/interlock-go/interlock/core/reason"
)

// processes makes lockers on one store, as processes of a service.
func processes(t *testing.T, s core.Store, n int, opts ...core.LockerOption) []*core.Locker {
	t.Helper()
	all := make([]*core.Locker, n)
	for i := range all {
		all[i] = newLocker(t, s, opts...)
	}
	return all
}

func shared(t *testing.T, l *core.Locker, key string, opts ...core.Option) *core.Lease {
	t.Helper()
	lease, err := l.LockShared(t.Context(), key, opts...)
	if err != nil {
		t.Fatalf("LockShared(%q): %v", key, err)
	}
	return lease
}

func permit(t *testing.T, l *core.Locker, key string, n int, opts ...core.Option) *core.Lease {
	t.Helper()
	lease, err := l.Permit(t.Context(), key, n, opts...)
	if err != nil {
		t.Fatalf("Permit(%q, %d): %v", key, n, err)
	}
	return lease
}

// soon runs f, and returns a channel that is closed when f has returned.
func soon(f func()) <-chan struct{} {
	done := make(chan struct{})
	go func() { defer close(done); f() }()
	return done
}

func over(done <-chan struct{}) bool {
	select {
	case <-done:
		return true
	default:
		return false
	}
}

func TestAtMostNHoldAPermitOverAllProcesses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const n = 3
		var now, most atomic.Int64
		var wg sync.WaitGroup
		for _, l := range processes(t, memstore.New(), 4) {
			for range 20 {
				wg.Go(func() {
					lease := permit(t, l, "k", n)
					if here := now.Add(1); here > n {
						t.Errorf("%d permits of %d", here, n)
					} else if here > most.Load() {
						most.Store(here)
					}
					time.Sleep(10 * time.Millisecond)
					now.Add(-1)
					release(t, lease)
				})
			}
		}
		wg.Wait()
		if most.Load() != n {
			t.Errorf("at most %d at once, of %d", most.Load(), n)
		}
	})
}

func TestAPermitThatIsNotToBeHadIsFull(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		all := processes(t, memstore.New(), 2)
		first, second := permit(t, all[0], "k", 2), permit(t, all[1], "k", 2)
		for _, l := range all {
			_, err := l.TryPermit(t.Context(), "k", 2)
			wantErr(t, err, core.ErrFull)
			wantErr(t, err, core.ErrHeld)
			_, err = l.Permit(t.Context(), "k", 2, core.Wait(time.Second))
			wantErr(t, err, core.ErrFull)
			_, err = l.TryLock(t.Context(), "k")
			if !errors.Is(err, core.ErrHeld) || errors.Is(err, core.ErrFull) {
				t.Errorf("the lock: %v", err)
			}
		}
		release(t, first)
		third, err := all[1].TryPermit(t.Context(), "k", 2)
		if err != nil {
			t.Fatal(err)
		}
		release(t, third)
		release(t, second)
		release(t, held(t, all[0], t.Context(), "k"))
		lease := held(t, all[0], t.Context(), "k")
		_, err = all[1].TryPermit(t.Context(), "k", 2)
		if !errors.Is(err, core.ErrHeld) || errors.Is(err, core.ErrFull) {
			t.Errorf("under an exclusive holder: %v", err)
		}
		release(t, lease)
	})
}

// The store mints 16 tokens for a permit, so that it passes through 16 callers of a
// process before it goes back.
func TestAPermitIsHandedOnAsOftenAsItHasTokens(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := memstore.New()
		l := newLocker(t, s)
		var mu sync.Mutex
		var tokens []int64
		var wg sync.WaitGroup
		for range 40 {
			wg.Go(func() {
				lease := permit(t, l, "k", 1)
				mu.Lock()
				tokens = append(tokens, lease.Token())
				mu.Unlock()
				time.Sleep(time.Microsecond)
				release(t, lease)
			})
		}
		wg.Wait()
		slices.Sort(tokens)
		if n := len(slices.Compact(tokens)); n != 40 {
			t.Errorf("%d tokens for 40 permits", n)
		}
		if a, r := s.Requests(memstore.Acquire), s.Requests(memstore.Release); a < 3 || a > 7 || r != 3 {
			t.Errorf("%d acquires and %d releases; want 3 of each, and some acquires that are refused", a, r)
		}
	})
}

// Redisson #2045, #3046, #1604: permits that no watchdog renews, and that are gone for
// ever after a crash.
func TestAPermitIsRenewedAndTheOneOfADeadProcessIsFreeAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := memstore.New()
		live, other := newLocker(t, s, core.Watchdog(3*time.Second)), newLocker(t, s, core.Watchdog(3*time.Second))
		lease := permit(t, live, "k", 1)
		time.Sleep(time.Minute)
		wantErr(t, lease.Err(), nil)
		cut := lease.Deadline()
		var dead atomic.Bool
		dead.Store(true)
		s.Intercept(func(r memstore.Request) memstore.Fault {
			if dead.Load() && r.Op != memstore.Acquire {
				return memstore.Unreachable
			}
			return memstore.Fault{}
		})
		next := permit(t, other, "k", 1)
		if late := time.Since(cut); late > 2*time.Second {
			t.Errorf("free %v after the end of its lease", late)
		}
		wantErr(t, lease.Err(), core.ErrLost)
		dead.Store(false)
		_ = lease.Release(t.Context()) // Redisson #4086, #4091: it must not add a permit
		_, err := live.TryPermit(t.Context(), "k", 1)
		wantErr(t, err, core.ErrFull)
		release(t, next)
	})
}

func TestSharersHoldTogetherAndAnExclusiveHolderAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		all := processes(t, memstore.New(), 2)
		readers := []*core.Lease{shared(t, all[0], "k"), shared(t, all[0], "k"), shared(t, all[1], "k")}
		var writer *core.Lease
		done := soon(func() { writer = held(t, all[1], t.Context(), "k") })
		synctest.Wait()
		for _, r := range readers {
			if over(done) {
				t.Fatal("a writer beside readers")
			}
			release(t, r)
		}
		<-done
		for _, l := range all {
			_, err := l.TryLockShared(t.Context(), "k")
			wantErr(t, err, core.ErrHeld)
		}
		again := soon(func() { release(t, shared(t, all[0], "k")) })
		synctest.Wait()
		if over(again) {
			t.Error("a reader beside a writer")
		}
		release(t, writer)
		<-again
	})
}

func TestASharerThatComesLaterWaitsBehindAWriter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for name, where := range map[string]int{"in its process": 0, "in another process": 1} {
			all := processes(t, memstore.New(), 2)
			reader := shared(t, all[0], name)
			var order []string
			writer := soon(func() {
				lease := held(t, all[0], t.Context(), name)
				order = append(order, "writer")
				release(t, lease)
			})
			synctest.Wait()
			later := soon(func() {
				lease := shared(t, all[where], name)
				order = append(order, "reader")
				release(t, lease)
			})
			time.Sleep(5 * time.Second) // the writer asks again, and stays in front
			release(t, reader)
			<-writer
			<-later
			if !slices.Equal(order, []string{"writer", "reader"}) {
				t.Errorf("%s: %v", name, order)
			}
		}
	})
}

// The cost for the store of a thousand requests of one process.
func TestSharersOfOneProcessAreOneHoldOfTheStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := memstore.New()
		l := newLocker(t, s, core.Watchdog(30*time.Second))
		first := shared(t, l, "k")
		var wg sync.WaitGroup
		for range 1000 {
			wg.Go(func() {
				lease := shared(t, l, "k")
				if lease.Token() != first.Token() {
					t.Error("sharers of one hold have different tokens")
				}
				time.Sleep(100 * time.Millisecond)
				release(t, lease)
			})
		}
		wg.Wait()
		if h := l.Held(); len(h) != 1 || h[0].Kind != "shared" || h[0].Holds != 1 {
			t.Errorf("Held: %+v", h)
		}
		release(t, first)
		a, renewals, r := s.Requests(memstore.Acquire), s.Requests(memstore.Renew), s.Requests(memstore.Release)
		if a != 1 || r != 1 || renewals > 1 {
			t.Errorf("%d acquires, %d renewals and %d releases", a, renewals, r)
		}
	})
}

// A stream of readers in one process must not hide it from a writer of another.
func TestAStreamOfSharersDoesNotStarveAWriterElsewhere(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		all := processes(t, memstore.New(), 2)
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		for i := range 10 {
			wg.Go(func() {
				time.Sleep(time.Duration(i) * time.Millisecond)
				for ctx.Err() == nil {
					lease := shared(t, all[0], "k")
					time.Sleep(10 * time.Millisecond)
					release(t, lease)
				}
			})
		}
		time.Sleep(time.Second)
		for range 20 {
			begin := time.Now()
			release(t, held(t, all[1], t.Context(), "k"))
			if took := time.Since(begin); took > 200*time.Millisecond {
				t.Errorf("a writer waited for %v", took)
			}
			time.Sleep(30 * time.Millisecond)
		}
		cancel()
		wg.Wait()
	})
}

func TestALossEndsTheContextOfEachThatShares(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := memstore.New()
		var told atomic.Int64
		l := newLocker(t, s, core.Watchdog(3*time.Second), core.OnLost(func(core.Loss) { told.Add(1) }))
		leases := []*core.Lease{shared(t, l, "k"), shared(t, l, "k"), shared(t, l, "k")}
		s.Intercept(always(memstore.Unreachable))
		time.Sleep(4 * time.Second)
		for _, lease := range leases {
			if cause := context.Cause(lease.Context()); !errors.Is(cause, core.ErrLost) {
				t.Errorf("cause %v", cause)
			}
			wantErr(t, lease.Release(t.Context()), core.ErrLost)
		}
		synctest.Wait()
		if told.Load() != 3 {
			t.Errorf("%d were told of the loss", told.Load())
		}
		s.Intercept(nil)
	})
}

// Redisson #2144: a short lease of one owner cuts the longer lease of another.
func TestMaxHoldEndsOneThatSharesAndNotTheOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLocker(t, memstore.New(), core.Watchdog(3*time.Second))
		long, short := shared(t, l, "k"), shared(t, l, "k", core.MaxHold(time.Second))
		time.Sleep(2 * time.Second)
		if cause := context.Cause(short.Context()); !errors.Is(cause, core.ErrMaxHold) {
			t.Errorf("cause %v", cause)
		}
		time.Sleep(time.Minute)
		wantErr(t, long.Err(), nil)
		release(t, short)
		wantErr(t, long.Check(t.Context()), nil)
		release(t, long)
		release(t, held(t, l, t.Context(), "k"))
	})
}

func TestAFixedLeaseIsNotSharedInMemory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := memstore.New()
		l := newLocker(t, s)
		a, b := shared(t, l, "k", core.TTL(time.Minute)), shared(t, l, "k", core.TTL(time.Minute))
		if n := s.Requests(memstore.Acquire); n != 2 {
			t.Errorf("%d requests", n)
		}
		release(t, a)
		release(t, b)

		renewed := shared(t, l, "x")
		both, err := l.LockAll(t.Context(), []string{"x", "y"}, core.Shared(), core.TTL(time.Minute))
		if err != nil {
			t.Fatal(err)
		}
		again := shared(t, l, "y")
		time.Sleep(2 * time.Minute)
		wantErr(t, both.Err(), core.ErrLost)
		wantErr(t, renewed.Err(), nil)
		wantErr(t, again.Err(), nil)
		_ = both.Release(t.Context())
		release(t, renewed)
		release(t, again)
	})
}

// Redisson #4796, #4217, and the recursive read lock of sync.RWMutex.
func TestHoldsOfAnotherKindUnderAHold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		all := processes(t, memstore.New(), 2)
		outer := shared(t, all[0], "k")
		_, err := all[0].Lock(outer.Context(), "k")
		wantErr(t, err, core.ErrUpgrade)
		if r := core.ReasonOf(t.Context(), err); r != reason.Misconfigured {
			t.Errorf("reason %q", r)
		}
		_, err = all[0].Permit(outer.Context(), "k", 2)
		wantErr(t, err, core.ErrUpgrade)
		writer := soon(func() { release(t, held(t, all[1], t.Context(), "k")) })
		synctest.Wait()
		inner, err := all[0].LockShared(outer.Context(), "k") // although a writer waits
		if err != nil {
			t.Fatal(err)
		}
		release(t, inner)
		release(t, outer)
		<-writer

		exclusive := held(t, all[0], t.Context(), "k")
		under, err := all[0].LockShared(exclusive.Context(), "k")
		if err != nil {
			t.Fatal(err)
		}
		release(t, exclusive)
		time.Sleep(2 * time.Minute) // the remaining hold is renewed, exclusively
		wantErr(t, under.Err(), nil)
		_, err = all[1].TryLockShared(t.Context(), "k")
		wantErr(t, err, core.ErrHeld)
		release(t, under)

		one := permit(t, all[0], "p", 1)
		two, err := all[0].Permit(one.Context(), "p", 1)
		if err != nil {
			t.Fatal(err)
		}
		_, err = all[0].Lock(one.Context(), "p")
		wantErr(t, err, core.ErrUpgrade)
		release(t, one)
		_, err = all[0].TryPermit(t.Context(), "p", 1)
		wantErr(t, err, core.ErrFull)
		release(t, two)
		_, err = all[0].Lock(one.Context(), "p") // it is released, so nothing is held
		if err == nil {
			t.Error("a lock under a context that has ended")
		}
	})
}

// golang/go #37852: the first that waits leaves, and the next must not be stranded.
func TestTheNextWaiterGetsThePlaceOfOneThatLeft(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		all := processes(t, memstore.New(), 2)
		for name, take := range map[string]func(ctx context.Context, l *core.Locker) (*core.Lease, error){
			"permit": func(ctx context.Context, l *core.Locker) (*core.Lease, error) { return l.Permit(ctx, "p", 1) },
			"shared": func(ctx context.Context, l *core.Locker) (*core.Lease, error) { return l.LockShared(ctx, "s") },
		} {
			key := name[:1]
			blocker := held(t, all[1], t.Context(), key)
			ctx, cancel := context.WithCancel(t.Context())
			first := soon(func() {
				_, err := take(ctx, all[0])
				wantErr(t, err, context.Canceled)
			})
			synctest.Wait()
			second := soon(func() {
				lease, err := take(t.Context(), all[0])
				if err != nil {
					t.Error(err)
					return
				}
				release(t, lease)
			})
			synctest.Wait()
			cancel()
			<-first
			release(t, blocker)
			begin := time.Now()
			<-second
			if took := time.Since(begin); took > 100*time.Millisecond {
				t.Errorf("%s: %v after the release", name, took)
			}
		}
	})
}

func TestPermitsAndSharedAreRefusedWhereTheyHaveNoMeaning(t *testing.T) {
	for name, opts := range map[string][]core.LockerOption{
		"none": {core.Permits(0)}, "many": {core.Permits(1025)}, "locker": {core.Shared()}, "locker's permits": {core.Permits(1)},
	} {
		if _, err := core.New(memstore.New(), opts...); !errors.Is(err, core.ErrConfig) {
			t.Errorf("%s: %v", name, err)
		}
	}
	l := newLocker(t, memstore.New())
	if _, err := core.NewGuard(l, "k", core.Shared(), core.ShareReads()); !errors.Is(err, core.ErrConfig) {
		t.Errorf("ShareReads of a shared rule: %v", err)
	}
}

// Redisson #1542: the readers that wait come together after the writer, from all
// processes.
func TestSharersComeTogetherAfterAWriter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		all := processes(t, memstore.New(), 3)
		writer := held(t, all[0], t.Context(), "k")
		var inside atomic.Int64
		var wg sync.WaitGroup
		for _, l := range all {
			for range 4 {
				wg.Go(func() {
					lease := shared(t, l, "k")
					inside.Add(1)
					time.Sleep(time.Second)
					release(t, lease)
				})
			}
		}
		synctest.Wait()
		release(t, writer)
		time.Sleep(500 * time.Millisecond)
		if n := inside.Load(); n != 12 {
			t.Errorf("%d of 12 share after half a second", n)
		}
		wg.Wait()
	})
}

// etcd #16221: the request of a waiter that has gone is executed late. It must not keep
// a permit for nobody.
func TestARequestThatIsLateKeepsNoPlaceForAWaiterThatHasGone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := memstore.New()
		l, other := newLocker(t, s, core.Watchdog(time.Minute)), newLocker(t, s)
		s.Intercept(during(memstore.Acquire, memstore.Fault{Before: 5 * time.Second}))
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err := l.Permit(ctx, "k", 1)
		wantErr(t, err, context.DeadlineExceeded)
		s.Intercept(nil)
		time.Sleep(6 * time.Second)
		lease, err := other.TryPermit(t.Context(), "k", 1)
		if err != nil {
			t.Fatalf("the permit is kept for nobody: %v", err)
		}
		release(t, lease)
	})
}
