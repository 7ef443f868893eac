package inflight_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/interlock-go/interlock/core/driver"
	"github.com/interlock-go/interlock/core/internal/inflight"
)

func TestAnOutcomeGoesToTheCallerOrToOthersAndNeverToBoth(t *testing.T) {
	for range 2000 {
		var c inflight.Caller
		var all sync.WaitGroup
		done, ctx, late := make(chan int, 1), context.Background(), false
		ctx, cancel := context.WithCancel(ctx)
		all.Go(cancel)
		all.Go(func() {
			if c.Serve() {
				done <- 7
				return
			}
			late = true
		})
		got, ok := inflight.Wait(ctx, time.Time{}, &c, done)
		all.Wait()
		if ok == late || ok && got != 7 || c.Left() != late || c.Waits() {
			t.Fatalf("the caller has %d, %v, and the others have it: %v; want one of the two", got, ok, late)
		}
	}
}

func TestACallerLeavesAtItsDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var c inflight.Caller
		begin := time.Now()
		_, ok := inflight.Wait(t.Context(), begin.Add(time.Second), &c, make(chan int, 1))
		if took := time.Since(begin); ok || took != time.Second || !c.Left() || c.Serve() {
			t.Errorf("%v after %v, left: %v; want that the caller leaves after a second", ok, took, c.Left())
		}
	})
}

func TestTheErrorOfACallerThatHasLeftSaysWhy(t *testing.T) {
	why := errors.New("the client has gone")
	ctx, cancel := context.WithCancelCause(t.Context())
	if err := inflight.Pending(ctx); !errors.Is(err, driver.ErrPending) {
		t.Errorf("at the deadline: %v; want ErrPending", err)
	}
	cancel(why)
	if err := inflight.Pending(ctx); !errors.Is(err, driver.ErrPending) || !errors.Is(err, why) {
		t.Errorf("after the end of the context: %v; want ErrPending, and its cause", err)
	}
}
