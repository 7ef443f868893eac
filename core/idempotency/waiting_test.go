package idempotency_test

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/idempotency"
	"github.com/interlock-go/interlock/core/idempotency/endpoint"
	"github.com/interlock-go/interlock/core/idempotency/record"
	"github.com/interlock-go/interlock/core/memstore"
)

func TestADuplicateWaitsAndGetsTheAnswer(t *testing.T) {
	inBubble(t, func(w *world) {
		e := w.engine(idempotency.WaitReplay(10 * time.Second))
		n := 0
		slow := func(status int, d time.Duration) handler {
			return func(ctx context.Context, a endpoint.Attempt) (endpoint.Response, bool) {
				<-time.After(d)
				return answers(status, &n)(ctx, a)
			}
		}
		both := func(key string, first, second handler, wants ...string) time.Duration {
			t.Helper()
			var wg sync.WaitGroup
			wg.Go(func() { w.want(serve(w.Context(), e, post(key), first), wants[0]) })
			synctest.Wait()
			begin := time.Now()
			w.want(serve(w.Context(), e, post(key), second), wants[1])
			d := time.Since(begin)
			wg.Wait()
			return d
		}
		if d := both("done", slow(201, 5*time.Second), answers(200, &n), "201 run 1", "replay 201 run 1"); d != 5*time.Second {
			t.Errorf("woken after %v", d)
		}
		both("failed", slow(500, 5*time.Second), answers(200, &n), "500 run 2", "200 run 3")
		both("slow", slow(201, 20*time.Second), answers(200, &n), "201 run 4", "idempotency-in-flight")

		var wg sync.WaitGroup
		wg.Go(func() { serve(w.Context(), e, post("gone"), slow(201, 5*time.Second)) })
		synctest.Wait()
		ctx, cancel := context.WithTimeout(w.Context(), time.Second)
		defer cancel()
		w.want(serve(ctx, e, post("gone"), answers(200, &n)), "idempotency-in-flight")
		wg.Wait()
		for _, r := range w.store.Records() {
			if r.Waiting > 0 {
				t.Errorf("%d still wait for %s", r.Waiting, r.ID)
			}
		}
	})
}

// inFlight runs f while a payment with the key k is being made, which takes 10 s.
func (w *world) inFlight(e *idempotency.Engine, f func()) {
	w.Helper()
	var wg sync.WaitGroup
	n := 0
	wg.Go(func() {
		w.want(serve(w.Context(), e, post("k"), func(ctx context.Context, a endpoint.Attempt) (endpoint.Response, bool) {
			<-time.After(10 * time.Second)
			return answers(201, &n)(ctx, a)
		}), "201 run 1")
	})
	synctest.Wait()
	f()
	wg.Wait()
}

// unsure is a store that cannot tell whether a wait has missed anything.
type unsure struct{ record.Store }

func (s unsure) Await(id string, since time.Time, wake func()) (stop func()) {
	defer wake()
	return s.Store.Await(id, since, wake)
}

// unheard is a store without the announcements that it promises.
type unheard struct{ record.Store }

func (unheard) Await(string, time.Time, func()) (stop func()) { return func() {} }

func TestADuplicateFindsAnAnswerThatIsNotAnnounced(t *testing.T) {
	inBubble(t, func(w *world) {
		e := w.engineOn(unheard{w.store}, idempotency.WaitReplay(time.Minute), idempotency.Lease(time.Minute))
		begin := time.Now()
		w.inFlight(e, func() {
			w.want(serve(w.Context(), e, post("k"), nil), "replay 201 run 1")
		})
		if d := time.Since(begin); d > 13*time.Second {
			t.Errorf("found after %v; the answer was there after 10s", d)
		}
	})
}

func TestADuplicateOutOfTimeGetsInFlight(t *testing.T) {
	never := func(context.Context, endpoint.Attempt) (endpoint.Response, bool) { panic("it runs") }
	inBubble(t, func(w *world) {
		e := w.engineOn(unsure{w.store}, idempotency.WaitReplay(time.Minute))
		w.inFlight(e, func() {
			ctx, cancel := context.WithTimeout(w.Context(), time.Second)
			defer cancel()
			w.want(serve(ctx, e, post("k"), never), "idempotency-in-flight")
			w.store.Intercept(func(r memstore.Request) memstore.Fault { // the deadline ends while the store is asked once more
				if r.Op == memstore.Claim && w.store.Records()[0].Waiting > 0 {
					return memstore.Fault{After: 1100 * time.Millisecond}
				}
				return memstore.Fault{}
			})
			ctx, cancel = context.WithTimeout(w.Context(), time.Second)
			defer cancel()
			w.want(serve(ctx, e, post("k"), never), "idempotency-in-flight")
			w.store.Intercept(nil)
			gone, leave := context.WithCancel(w.Context())
			time.AfterFunc(time.Second, leave)
			w.want(serve(gone, e, post("k"), never), "canceled")
		})
	})
	inBubble(t, func(w *world) { // nothing is known of the record, nor of a lock
		e := w.engine()
		w.store.Intercept(func(memstore.Request) memstore.Fault {
			return memstore.Fault{After: time.Minute, Err: core.ErrUnavailable}
		})
		ctx, cancel := context.WithTimeout(w.Context(), time.Second)
		defer cancel()
		w.want(serve(ctx, e, post("k"), never), "idempotency-unavailable")
		w.store.Intercept(nil)
		<-time.After(time.Minute)
	})
}

func TestDuplicatesThatWaitAreBounded(t *testing.T) {
	inBubble(t, func(w *world) {
		e := w.engine(idempotency.WaitReplay(time.Minute), idempotency.MaxWaiters(3))
		other := e.With(idempotency.MaxWaiters(5))
		n := 0
		w.inFlight(e, func() {
			var wg sync.WaitGroup
			for range 3 {
				wg.Go(func() { w.want(serve(w.Context(), e, post("k"), answers(200, &n)), "replay 201 run 1") })
			}
			synctest.Wait()
			begin := time.Now()
			w.want(serve(w.Context(), e, post("k"), answers(200, &n)), "idempotency-in-flight")
			if d := time.Since(begin); d != 0 {
				t.Errorf("refused after %v", d)
			}
			w.want(serve(w.Context(), e, post("another"), answers(200, &n)), "200 run 1")
			wg.Go(func() { w.want(serve(w.Context(), other, post("k"), answers(200, &n)), "replay 201 run 1") })
			wg.Wait()
		})
		// All have left.
		w.store.LapseClaims()
		if err := e.Forget(w.Context(), "alice", "k"); err != nil {
			t.Fatal(err)
		}
		w.inFlight(e, func() {
			w.want(serve(w.Context(), e, post("k"), answers(200, &n)), "replay 201 run 1")
		})
	})
}

// A waiter asks again when the lease of the request in flight could be over. If the
// store does not answer then, its earlier answer still counts.
func TestADuplicateThatWaitsGetsInFlightWhenTheStoreFails(t *testing.T) {
	never := func(context.Context, endpoint.Attempt) (endpoint.Response, bool) { panic("it runs") }
	for name, broken := range map[string]memstore.Fault{
		"no answer in time":      {After: time.Minute},
		"not sent in time":       {After: time.Minute, Err: core.ErrUnavailable},
		"unreachable":            memstore.Unreachable,
		"connection broken late": memstore.LostReply,
	} {
		for mode, opts := range map[string][]idempotency.Option{"": nil, ", fails open": {idempotency.FailOpen()}} {
			t.Run(name+mode, func(t *testing.T) {
				inBubble(t, func(w *world) {
					e := w.engine(append(opts, idempotency.WaitReplay(time.Minute), idempotency.Lease(3*time.Second))...)
					w.inFlight(e, func() {
						asked := 0
						w.store.Intercept(func(r memstore.Request) memstore.Fault {
							if r.Op != memstore.Claim {
								return memstore.Fault{}
							}
							if asked++; asked == 1 {
								return memstore.Fault{}
							}
							return broken
						})
						w.want(serve(w.Context(), e, post("k"), never), "idempotency-in-flight")
						if asked != 2 {
							t.Errorf("asked %d times", asked)
						}
						w.store.Intercept(nil)
					})
					n := 0
					w.want(serve(w.Context(), e, post("k"), answers(200, &n)), "replay 201 run 1")
					<-time.After(time.Minute) // until the late replies have come
				})
			})
		}
	}
}
