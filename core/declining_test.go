package core_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/memstore"
)

// leaving is a process without callers: the last has just left, the request that takes the
// process out of the list is on its way, and another caller comes at that moment.
type leaving struct {
	*testing.T
	store  *memstore.Store
	holder *core.Lease
	locker *core.Locker
	got    chan time.Time
}

func newLeaving(t *testing.T, fault memstore.Fault, of []core.Option, opts ...core.Option) *leaving {
	x := &leaving{T: t, store: memstore.New(), got: make(chan time.Time, 1)}
	x.store.Intercept(during(memstore.Decline, fault))
	x.holder = held(t, newLocker(t, x.store), t.Context(), "k", of...)
	x.locker = newLocker(t, x.store)
	ctx, leave := context.WithCancel(t.Context())
	go func() {
		_, err := x.locker.Lock(ctx, "k", opts...)
		wantErr(t, err, context.Canceled)
	}()
	synctest.Wait()
	leave()
	synctest.Wait()
	go func() {
		lease, err := x.locker.Lock(t.Context(), "k", opts...)
		if err != nil {
			t.Errorf("the caller that came next: %v", err)
			x.got <- time.Time{}
			return
		}
		x.got <- time.Now()
		_ = lease.Release(context.Background())
	}()
	return x
}

// freed releases the lock, and says after what time the caller has it.
func (x *leaving) freed() time.Duration {
	x.Helper()
	begin := time.Now()
	release(x.T, x.holder)
	return (<-x.got).Sub(begin)
}

// When a process leaves the list, its request does not take out the caller that came after it.
func TestACallerThatComesAfterTheLastOneHasLeftIsCalled(t *testing.T) {
	for name, opts := range map[string][]core.Option{
		"exclusive": nil, "only waiter": {core.OneWaiter()}, "newest": {core.Newest()}, "shared": {core.Shared()}, "permit": {core.Permits(1)},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				x := newLeaving(t, memstore.Delay(30*time.Millisecond), nil, opts...)
				time.Sleep(time.Second)
				if took := x.freed(); took > 10*time.Millisecond {
					t.Errorf("the caller has the lock %v after the release; want it at once", took)
				}
			})
		})
	}
}

// The place of the only waiter is the next caller's, and no other caller gets it.
func TestTheOnlyWaiterThatComesAfterTheLastOneHasLeftStaysTheOnlyOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := newLeaving(t, memstore.Delay(30*time.Millisecond), nil, core.OneWaiter())
		time.Sleep(100 * time.Millisecond)
		_, err := newLocker(t, x.store).Lock(t.Context(), "k", core.OneWaiter())
		wantErr(t, err, core.ErrQueueFull)
		x.freed()
	})
}

// While the store does not say whether the process has left the list, a caller asks soon, and asks
// again, so that it sleeps for a second at most while the lock is free.
func TestACallerIsNotForgottenWhileTheRequestToLeaveHangs(t *testing.T) {
	for name, fault := range map[string]memstore.Fault{
		"it is carried out late": {Before: 700 * time.Millisecond},
		"after its time":         {Before: 3 * time.Second},
		"its reply is lost":      {Before: 200 * time.Millisecond, After: time.Hour},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				x := newLeaving(t, fault, nil)
				begin := time.Now()
				time.Sleep(200 * time.Millisecond)
				if n := x.store.Requests(memstore.Acquire); n != 4 { // the caller before it asked twice, as the calls began
					t.Errorf("%d requests after %v; want the caller's own", n, time.Since(begin))
				}
				time.Sleep(fault.Before - 150*time.Millisecond)
				if took := x.freed(); took > time.Second {
					t.Errorf("the caller has the lock %v after the release; want a second at most", took)
				}
				time.Sleep(2 * time.Hour)
				if n := core.Entries(x.locker); n != 0 {
					t.Errorf("%d locks are remembered; want none", n)
				}
			})
		})
	}
}

// A free lock is to be had soon, whatever becomes of the request to leave the list.
func TestACallerDoesNotWaitLongForTheRequestToLeave(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := newLeaving(t, memstore.Delay(time.Hour), nil)
		begin := time.Now()
		_, err := x.locker.TryLock(t.Context(), "k")
		wantErr(t, err, core.ErrHeld)
		if took := time.Since(begin); took > 0 {
			t.Errorf("a caller that does not wait is refused after %v", took)
		}
		if took := x.freed(); took > 100*time.Millisecond {
			t.Errorf("the caller has the lock %v after the release; want 100 ms at most", took)
		}
		time.Sleep(2 * time.Hour)
	})
}

// A release enters its own locker into the list, as a request does. The request that takes
// the locker out may come after the release.
func TestALockerThatItsOwnReleaseHasListedIsCalled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memstore.New()
		store.Intercept(during(memstore.Decline, memstore.Fault{Before: 20 * time.Second}))
		lockers := []*core.Locker{newLocker(t, store), newLocker(t, store)}
		waits := func(l *core.Locker) chan *core.Lease {
			got := make(chan *core.Lease, 1)
			go func() {
				lease, err := l.Lock(context.Background(), "k")
				wantErr(t, err, nil)
				got <- lease
			}()
			synctest.Wait()
			return got
		}
		first := held(t, lockers[1], t.Context(), "k")
		ctx, leave := context.WithCancel(t.Context())
		go func() { _, _ = lockers[0].Lock(ctx, "k") }()
		synctest.Wait()
		leave()
		synctest.Wait()
		release(t, first)
		time.Sleep(time.Second)
		second, err := lockers[0].TryLock(t.Context(), "k")
		wantErr(t, err, nil)
		other, own := waits(lockers[1]), waits(lockers[0])
		time.Sleep(12 * time.Second) // it has renewed, and knows that another process waits
		release(t, second)
		third := <-other
		time.Sleep(13 * time.Second) // the process has left the list
		begin := time.Now()
		release(t, third)
		fourth := <-own
		if took := time.Since(begin); took > time.Second {
			t.Errorf("the caller has the lock %v after the release; want a second at most", took)
		}
		release(t, fourth)
	})
}

func TestAnOnlyWaiterThatIsHandedTheLockLeavesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLocker(t, memstore.New())
		first := held(t, l, t.Context(), "k")
		second := comes(t, t.Context(), l, core.OneWaiter())
		_ = first.Release(t.Context())
		<-second.done
		_ = second.lease.Release(t.Context())
		synctest.Wait()
		if n := core.Entries(l); n != 0 {
			t.Errorf("the process remembers %d keys after the last release; want none", n)
		}
	})
}
