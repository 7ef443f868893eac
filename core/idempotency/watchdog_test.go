package idempotency_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/idempotency"
	"github.com/interlock-go/interlock/core/idempotency/endpoint"
	"github.com/interlock-go/interlock/core/idempotency/record"
	"github.com/interlock-go/interlock/core/memstore"
)

// batches counts renewals that go together.
type batches struct {
	record.Store
	n atomic.Int64
}

func (b *batches) Extend(ctx context.Context, batch []record.Extension, done func(int, error)) {
	b.n.Add(1)
	b.Store.Extend(ctx, batch, done)
}

func TestManyClaimsAreRenewedTogether(t *testing.T) {
	inBubble(t, func(w *world) {
		store := &batches{Store: w.store}
		e := w.engineOn(store)
		var wg sync.WaitGroup
		for i := range 500 {
			wg.Go(func() {
				serve(w.Context(), e, post(fmt.Sprint("k", i)), func(context.Context, endpoint.Attempt) (endpoint.Response, bool) {
					<-time.After(25 * time.Second)
					return endpoint.Response{Status: 200}, true
				})
			})
		}
		wg.Wait()
		if k := store.n.Load(); k != 2 {
			t.Errorf("%d batches, want 2", k)
		}
	})
}

func TestALostClaimEndsTheHandlersContext(t *testing.T) {
	for name, c := range map[string]struct {
		lose  func(w *world)
		after time.Duration
		cause error
	}{
		"store down": {func(w *world) { w.down() }, 30*time.Second - 302*time.Millisecond, core.ErrLost},
		"taken over": {func(w *world) { w.store.TakeClaims(time.Hour) }, 10 * time.Second, core.ErrLost},
		"max hold":   {func(*world) {}, 2 * time.Minute, core.ErrMaxHold},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(w *world) {
				e := w.engine(idempotency.MaxHold(2 * time.Minute))
				got := serve(w.Context(), e, post("k"), func(ctx context.Context, _ endpoint.Attempt) (endpoint.Response, bool) {
					begin := time.Now()
					c.lose(w)
					<-ctx.Done()
					if cause := context.Cause(ctx); !errors.Is(cause, c.cause) {
						t.Errorf("ended with %v", cause)
					}
					if d := time.Since(begin); d != c.after {
						t.Errorf("ended after %v, want %v", d, c.after)
					}
					if err := idempotency.MarkEffect(ctx); !errors.Is(err, c.cause) {
						t.Errorf("MarkEffect: %v", err)
					}
					return endpoint.Response{Status: 500}, false
				})
				want := "ran, then lost"
				if c.cause == core.ErrMaxHold { //nolint:errorlint // the test's own
					want = "ran, then max-hold"
				}
				w.want(got, want)
				w.store.Intercept(nil)
				r := w.record()
				if r == nil || r.State != record.StateInFlight {
					t.Fatalf("the claim was not kept: %+v", r)
				}
				if n := w.store.Requests(memstore.Commit) + w.store.Requests(memstore.Abandon); n != 0 {
					t.Errorf("%d commits and releases", n)
				}
			})
		})
	}
}

func TestAHandlerThatEndsAfterTheLapse(t *testing.T) {
	inBubble(t, func(w *world) {
		e, other := w.engine(), w.engine()
		late := func(status int, meanwhile func()) handler {
			return func(ctx context.Context, _ endpoint.Attempt) (endpoint.Response, bool) {
				w.down(memstore.Extend)
				<-ctx.Done() // lost
				<-time.After(time.Second)
				meanwhile()
				return endpoint.Response{Status: status, Body: []byte("late")}, true
			}
		}
		n := 0
		w.want(serve(w.Context(), e, post("alone"), late(201, func() {})), "201 late")
		w.want(serve(w.Context(), other, post("alone"), answers(200, &n)), "replay 201 late")

		takeOver := func(key string) func() {
			return func() {
				want := fmt.Sprint("200 run ", n+1)
				w.want(serve(w.Context(), other, post(key), answers(200, &n)), want)
			}
		}
		w.want(serve(w.Context(), e, post("commit"), late(201, takeOver("commit"))), "replay 200 run 1")
		w.want(serve(w.Context(), e, post("fail"), late(500, takeOver("fail"))), "500 late")
		w.want(serve(w.Context(), e, post("fail"), answers(200, &n)), "replay 200 run 2")

		// The attempt that took over is still at work.
		release := make(chan struct{})
		var wg sync.WaitGroup
		w.want(serve(w.Context(), e, post("busy"), late(201, func() {
			wg.Go(func() {
				serve(w.Context(), other, post("busy"), func(ctx context.Context, a endpoint.Attempt) (endpoint.Response, bool) {
					if g := idempotency.Generation(ctx); g != 2 {
						t.Errorf("generation %d", g)
					}
					<-release
					return answers(200, &n)(ctx, a)
				})
			})
			synctest.Wait()
		})), "ran, then idempotency-in-flight")
		close(release)
		wg.Wait()
		w.want(serve(w.Context(), e, post("busy"), answers(200, &n)), "replay 200 run 3")
	})
}
