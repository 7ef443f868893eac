package idempotency_test

import (
	"context"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/interlock-go/interlock/core/idempotency"
	"github.com/interlock-go/interlock/core/idempotency/endpoint"
	"github.com/interlock-go/interlock/core/idempotency/record"
	"github.com/interlock-go/interlock/core/memstore"
	"github.com/interlock-go/interlock/core/reason"
)

func TestATakeOverComparesTheRequestFirst(t *testing.T) {
	inBubble(t, func(w *world) {
		e := w.engine()
		n := 0
		crash := func(key string, mark bool) {
			w.store.Intercept(func(r memstore.Request) memstore.Fault { // it makes no further request
				if r.Op == memstore.Claim || r.Op == memstore.Mark {
					return memstore.Fault{}
				}
				return memstore.Unreachable
			})
			dead := w.engine()
			serve(w.Context(), dead, post(key), func(ctx context.Context, _ endpoint.Attempt) (endpoint.Response, bool) {
				if mark {
					if err := idempotency.MarkEffect(ctx); err != nil {
						t.Error(err)
					}
				}
				<-ctx.Done()
				return endpoint.Response{}, false
			})
			w.store.Intercept(nil)
		}
		crash("k", false)
		w.want(serve(w.Context(), e, post("k"), answers(200, &n)), "idempotency-in-flight")
		<-time.After(time.Second) // the margin for clocks
		other := post("k")
		other.body = "pay 2"
		w.want(serve(w.Context(), e, other, answers(200, &n)), "idempotency-key-reused")
		w.want(serve(w.Context(), e.With(idempotency.Strict()), post("k"), answers(200, &n)), "idempotency-outcome-unknown")
		w.want(serve(w.Context(), e, post("k"), func(ctx context.Context, a endpoint.Attempt) (endpoint.Response, bool) {
			if g := idempotency.Generation(ctx); g != 2 {
				t.Errorf("generation %d, want 2", g)
			}
			return answers(200, &n)(ctx, a)
		}), "200 run 1")

		crash("marked", true)
		<-time.After(time.Hour)
		w.want(serve(w.Context(), e, post("marked"), answers(200, &n)), "idempotency-outcome-unknown")
		if err := e.Forget(t.Context(), "alice", "marked"); err != nil {
			t.Fatal(err)
		}
		w.want(serve(w.Context(), e, post("marked"), answers(200, &n)), "200 run 2")
	})
}

func TestAClientThatGoesAwayBeforeTheClaimLeavesNone(t *testing.T) {
	inBubble(t, func(w *world) {
		e := w.engine()
		w.store.Intercept(during(memstore.Claim, memstore.Delay(time.Second)))
		ctx, cancel := context.WithCancel(w.Context())
		time.AfterFunc(100*time.Millisecond, cancel)
		n := 0
		w.want(serve(ctx, e, post("k"), answers(200, &n)), "canceled")
		<-time.After(3 * time.Second)
		if r := w.record(); r != nil || n != 0 {
			t.Errorf("left behind: %+v; the handler ran %d times", r, n)
		}
	})
}

func TestAClaimWhoseTryMayStillComeIsGivenUpMoreThanOnce(t *testing.T) {
	inBubble(t, func(w *world) {
		e := w.engine()
		lost := record.ClaimRequest{}
		w.store.Intercept(func(r memstore.Request) memstore.Fault {
			if r.Op == memstore.Claim {
				lost = record.ClaimRequest{ID: r.Key, Token: r.Owner, Lease: 30 * time.Second, Retention: time.Hour}
				return memstore.LostRequest
			}
			return memstore.Fault{}
		})
		n := 0
		w.want(serve(w.Context(), e, post("k"), answers(200, &n)), "idempotency-unavailable")
		<-time.After(5 * time.Second)
		w.store.Intercept(nil)
		if _, err := w.store.Claim(w.Context(), lost); err != nil { // here it is
			t.Fatal(err)
		}
		<-time.After(6 * time.Second)
		if r := w.record(); r != nil {
			t.Errorf("a claim without a request: %+v", r)
		}
		<-time.After(time.Minute)
		if e.Pending() != 0 {
			t.Error("it is still given up")
		}
	})
}

func TestAGrantAfterTheEndOfItsLeaseIsNoGrant(t *testing.T) {
	inBubble(t, func(w *world) {
		e := w.engine(idempotency.Lease(time.Second))
		w.store.Intercept(during(memstore.Claim, memstore.Fault{After: 1500 * time.Millisecond}))
		n := 0
		w.want(serve(w.Context(), e, post("k"), answers(200, &n)), "idempotency-unavailable")
		synctest.Wait()
		if r := w.record(); r != nil || n != 0 {
			t.Errorf("left behind: %+v; the handler ran %d times", r, n)
		}
	})
}

func TestAStoreThatIsDownBeforeRefusesOrFailsOpen(t *testing.T) {
	inBubble(t, func(w *world) {
		e := w.engine()
		w.down()
		n := 0
		w.want(serve(w.Context(), e, post("k"), answers(200, &n)), "idempotency-unavailable")
		if n != 0 {
			t.Error("the handler ran")
		}
		w.notes.take()
		open := e.With(idempotency.FailOpen())
		key := ""
		w.want(serve(w.Context(), open, post("k"), func(ctx context.Context, _ endpoint.Attempt) (endpoint.Response, bool) {
			key = idempotency.DownstreamKey(ctx)
			if err := idempotency.MarkEffect(ctx); err != nil {
				t.Error(err)
			}
			return answers(200, &n)(ctx, nil)
		}), "passed 200 run 1")
		if got := w.notes.take(); !slices.Equal(got, []string{"bypassed"}) {
			t.Errorf("observed %v", got)
		}
		w.store.Intercept(nil)
		serve(w.Context(), e, post("k"), func(ctx context.Context, a endpoint.Attempt) (endpoint.Response, bool) {
			if again := idempotency.DownstreamKey(ctx); again != key || key == "" {
				t.Errorf("downstream keys %q and %q", key, again)
			}
			return answers(200, &n)(ctx, a)
		})
		w.leave(e, "damaged", "rubbish")
		w.want(serve(w.Context(), open, post("damaged"), answers(200, &n)), "idempotency-unavailable")
		if n != 2 {
			t.Errorf("ran %d times", n)
		}
	})
}

// The store answers within a tenth of a second, for which these requests do not wait.
func TestARequestThatHasNoTimeLeftIsNotBlamedOnTheStore(t *testing.T) {
	never := func(context.Context, endpoint.Attempt) (endpoint.Response, bool) { panic("it runs") }
	inBubble(t, func(w *world) {
		w.store.Intercept(func(memstore.Request) memstore.Fault { return memstore.Delay(50 * time.Millisecond) })
		for name, left := range map[string]time.Duration{"none": 0, "little": 60 * time.Millisecond} {
			for mode, opt := range map[string]idempotency.Option{"": nil, "-open": idempotency.FailOpen()} {
				ctx, cancel := context.WithTimeout(w.Context(), left)
				defer cancel()
				if got := serve(ctx, w.engine(opt), post(name+mode), never); got != string(reason.Deadline) {
					t.Errorf("%s%s: %s", name, mode, got)
				}
			}
		}
		<-time.After(time.Minute)
		if r := w.record(); r != nil {
			t.Errorf("left behind: %+v", r)
		}
	})
}

func TestTombstonesRefuseKeysThatExpired(t *testing.T) {
	inBubble(t, func(w *world) {
		e := w.engine(idempotency.Retention(time.Hour), idempotency.Tombstone(time.Hour))
		n := 0
		w.want(serve(w.Context(), e, post("k"), answers(201, &n)), "201 run 1")
		<-time.After(59 * time.Minute)
		w.want(serve(w.Context(), e, post("k"), answers(201, &n)), "replay 201 run 1")
		<-time.After(2 * time.Minute) // the replay has not prolonged it
		w.want(serve(w.Context(), e, post("k"), answers(201, &n)), "idempotency-key-expired")
		<-time.After(time.Hour)
		w.want(serve(w.Context(), e, post("k"), answers(201, &n)), "201 run 2")
	})
}
