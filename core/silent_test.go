package core_test

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/memstore"
	"github.com/interlock-go/interlock/core/reason"
	"github.com/interlock-go/interlock/internal/testkit"
)

// A store that hangs answers nothing before clients give up. All requests of an outage counted as clients
// that leave, or as contention, and no alert fired.
func TestACallerThatGivesUpOnASilentStoreReportsTheStore(t *testing.T) {
	for _, c := range []struct {
		hangs    bool
		after    time.Duration // the caller gives up
		deadline bool          // by a deadline
		want     reason.Reason
	}{
		{true, time.Second, false, reason.Unavailable},
		{true, time.Second, true, reason.Unavailable},
		{true, 10 * time.Millisecond, false, reason.Canceled}, // too soon to say
		{true, 10 * time.Millisecond, true, reason.Deadline},
		{false, time.Second, false, reason.Canceled}, // held by another process
		{false, time.Second, true, reason.Deadline},
	} {
		t.Run(fmt.Sprint(c), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newStore()
				l := newLocker(t, s)
				lease := held(t, newLocker(t, s), t.Context(), "k")
				if c.hangs {
					s.Intercept(during(memstore.Acquire, memstore.Fault{Before: 3 * time.Second}))
				}
				ctx, cancel := testkit.GivesUp(t.Context(), c.after, c.deadline)
				defer cancel()
				reasons := make(chan reason.Reason)
				for range 2 { // the first one asks, and the second waits behind it
					go func() {
						_, err := l.Lock(ctx, "k")
						reasons <- core.ReasonOf(ctx, err)
					}()
				}
				for range 2 {
					if got := <-reasons; got != c.want {
						t.Errorf("the reason is %s; want %s", got, c.want)
					}
				}
				time.Sleep(5 * time.Second) // until the requests are answered
				s.Intercept(nil)
				release(t, lease)
			})
		})
	}
}

// The worker that brings a ticket gives up like any other caller.
func TestATakeOverThatGivesUpOnASilentStoreReportsTheStore(t *testing.T) {
	for after, want := range map[time.Duration]reason.Reason{time.Second: reason.Unavailable, 10 * time.Millisecond: reason.Canceled} {
		t.Run(after.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newStore()
				l := newLocker(t, s)
				ticket := handOver(t, held(t, l, t.Context(), "k"), time.Minute)
				s.Intercept(during(memstore.Acquire, memstore.Fault{Before: 3 * time.Second}))
				ctx, cancel := context.WithCancel(t.Context())
				time.AfterFunc(after, cancel)
				_, err := l.TakeOver(ctx, ticket)
				if got := core.ReasonOf(ctx, err); got != want {
					t.Errorf("the reason is %s; want %s: %v", got, want, err)
				}
				time.Sleep(10 * time.Second) // until the request is answered, and its lock is free
			})
		})
	}
}
