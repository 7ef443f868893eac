package core_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/memstore"
)

// The grant for a newest caller that was superseded in its process has the number of that caller.
// The caller after it is newer than the callers that the store numbered meanwhile.
func TestTheNewestCallerDoesNotTakeTheNumberOfTheOneBefore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := memstore.New()
		a, b := newLocker(t, s), newLocker(t, s)
		s.Intercept(during(memstore.Acquire, memstore.Fault{After: 50 * time.Millisecond}))
		first := comes(t, t.Context(), a, core.Newest()) // granted, and does not know yet
		s.Intercept(nil)
		elsewhere := comes(t, t.Context(), b, core.Newest())
		last := comes(t, t.Context(), a, core.Newest())
		time.Sleep(100 * time.Millisecond)
		first.fails(core.ErrSuperseded)
		// The lock is free for an instant between the two, and either process may be the first to ask.
		if <-elsewhere.done; elsewhere.err == nil {
			superseded(t, elsewhere.lease)
			release(t, elsewhere.lease)
		} else {
			elsewhere.fails(core.ErrSuperseded)
		}
		works(t, last.holds())
		release(t, last.lease)
	})
}

// The store says that a caller is not the newest any more after its process has released the lock.
// The next caller looks then, and waits in its place.
func TestACallerBehindOneThatWasSupersededIsNotForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := memstore.New()
		a, b := newLocker(t, s), newLocker(t, s)
		lease := held(t, a, t.Context(), "k")
		first := comes(t, t.Context(), a, core.Newest())
		s.Intercept(during(memstore.Stand, memstore.Fault{After: 20 * time.Millisecond}))
		second := comes(t, t.Context(), b, core.Newest()) // the process of the first asks about it
		release(t, lease)
		inTurn := comes(t, t.Context(), a)
		works(t, second.holds())
		time.Sleep(30 * time.Millisecond)
		first.fails(core.ErrSuperseded)
		inTurn.waiting()
		release(t, second.lease)
		time.Sleep(100 * time.Millisecond)
		release(t, inTurn.holds())
	})
}

// The only waiter announces itself to the store when another caller of its process gets the lock,
// and keeps a second waiter out.
func TestTheOnlyWaiterIsKnownBehindAGrantOnItsWay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := memstore.New()
		a, b := newLocker(t, s), newLocker(t, s)
		s.Intercept(during(memstore.Acquire, memstore.Fault{After: 50 * time.Millisecond}))
		holder := comes(t, t.Context(), a)
		s.Intercept(nil)
		only := comes(t, t.Context(), a, core.OneWaiter())
		time.Sleep(60 * time.Millisecond)
		holder.holds()
		only.waiting()
		comes(t, t.Context(), b, core.OneWaiter()).fails(core.ErrQueueFull)
		release(t, holder.lease)
		release(t, only.holds())
	})
}

// The only waiter that gets the lock waits no more, however it gets the lock.
func TestTheOnlyWaiterLeavesItsPlaceWhenItHoldsTheLock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := memstore.New()
		a, b := newLocker(t, s), newLocker(t, s)
		lease := held(t, a, t.Context(), "k")
		only := comes(t, t.Context(), a, core.OneWaiter())
		only.waiting()
		release(t, lease)
		only.holds() // handed over in the process
		next := comes(t, t.Context(), b, core.OneWaiter())
		next.waiting()
		release(t, only.lease)
		release(t, next.holds())
	})
}

// The refusal of a caller that has left says nothing of the only waiter: that asks for itself, and
// so keeps a second one out.
func TestTheOnlyWaiterAsksForItself(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := memstore.New()
		a, b := newLocker(t, s), newLocker(t, s)
		lease := held(t, b, t.Context(), "k")
		s.Intercept(during(memstore.Acquire, memstore.Fault{After: 50 * time.Millisecond}))
		ctx, leave := context.WithCancel(t.Context())
		gone := comes(t, ctx, a)
		leave()
		synctest.Wait()
		<-gone.done
		s.Intercept(nil)
		only := comes(t, t.Context(), a, core.OneWaiter())
		time.Sleep(60 * time.Millisecond)
		only.waiting()
		second := comes(t, t.Context(), newLocker(t, s), core.OneWaiter())
		second.fails(core.ErrQueueFull)
		release(t, lease)
		release(t, only.holds())
	})
}

// Two callers of one process come one after the other, and the request that numbers the first
// arrives last. The newest of the two is still the second.
func TestANewestCallerIsNumberedAfterTheCallersBeforeIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := memstore.New()
		l := newLocker(t, s)
		lease := held(t, l, t.Context(), "k")
		s.Intercept(atFirst(memstore.Stand, memstore.Fault{Before: 50 * time.Millisecond}))
		first := comes(t, t.Context(), l, core.Newest())
		second := comes(t, t.Context(), l, core.Newest())
		time.Sleep(100 * time.Millisecond)
		first.fails(core.ErrSuperseded)
		release(t, lease)
		time.Sleep(2 * time.Second) // longer than a caller waits until it asks again
		release(t, second.holds())
	})
}

// A caller leaves while the request that numbers it is on its way. Its process asks for the next
// caller, and that request arrives first.
func TestTheNewestCallerIsNotSupersededByOneThatHasLeft(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := memstore.New()
		l := newLocker(t, s)
		lease := held(t, l, t.Context(), "k")
		s.Intercept(atFirst(memstore.Stand, memstore.Fault{Before: 50 * time.Millisecond}))
		ctx, leave := context.WithCancel(t.Context())
		first := comes(t, ctx, l, core.Newest())
		leave()
		first.fails(context.Canceled)
		second := comes(t, t.Context(), l, core.Newest())
		time.Sleep(100 * time.Millisecond)
		release(t, lease)
		time.Sleep(2 * time.Second) // longer than a caller waits until it asks again
		release(t, second.holds())
	})
}

// The answer to the request that numbers a caller is lost, and a caller of another process comes
// before the request is repeated.
func TestACallerThatRepeatsItsRequestStaysOlderThanThoseThatCameSince(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := memstore.New()
		a, b := newLocker(t, s), newLocker(t, s)
		lease := held(t, a, t.Context(), "k")
		s.Intercept(atFirst(memstore.Stand, memstore.LostReply))
		older := comes(t, t.Context(), a, core.Newest())
		newer := comes(t, t.Context(), b, core.Newest())
		time.Sleep(3 * time.Second) // longer than a caller waits until it asks again
		newer.waiting()
		older.fails(core.ErrSuperseded)
		release(t, lease)
		release(t, newer.holds())
	})
}

// The request that numbers a caller comes late: its process has a newer caller by then, which a caller of
// another process has superseded.
func TestALateRequestOfASupersededCallerSupersedesNoOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := memstore.New()
		a, b := newLocker(t, s), newLocker(t, s)
		lease := held(t, a, t.Context(), "k")
		s.Intercept(atFirst(memstore.Stand, memstore.Fault{Before: 50 * time.Millisecond}))
		first := comes(t, t.Context(), a, core.Newest())
		second := comes(t, t.Context(), a, core.Newest())
		newest := comes(t, t.Context(), b, core.Newest())
		time.Sleep(3 * time.Second) // longer than a caller waits until it asks again
		newest.waiting()
		first.fails(core.ErrSuperseded)
		second.fails(core.ErrSuperseded)
		release(t, lease)
		release(t, newest.holds())
	})
}
