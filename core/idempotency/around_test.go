package idempotency_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/idempotency"
	"github.com/interlock-go/interlock/core/idempotency/endpoint"
	"github.com/interlock-go/interlock/core/memstore"
)

// around serves a request through a rule that is a separate middleware around the
// engine. It returns the answer of the engine, and the refusal of the rule.
func (w *world) around(
	ctx context.Context, locks *memstore.Store, e *idempotency.Engine, h handler, opts ...core.GuardOption,
) (inside string, refusal *core.Refusal) {
	w.Helper()
	locker, err := core.New(locks)
	if err != nil {
		w.Fatal(err)
	}
	defer func() { _ = locker.Close(context.Background()) }()
	rule := core.Serialize(locker, "account", append(opts, core.Watchdog(30*time.Second))...)
	refusal = rule.Do(ctx, post("k"), func(ctx context.Context) bool {
		inside = serve(ctx, e, post("k"), h)
		return true
	})
	return inside, refusal
}

// ended is a handler that waits for the end of its context, and gives no answer.
func ended(t *testing.T, lose func(), want error, within time.Duration) handler {
	t.Helper()
	return func(ctx context.Context, _ endpoint.Attempt) (endpoint.Response, bool) {
		lose()
		begin := time.Now()
		select {
		case <-ctx.Done():
		case <-time.After(time.Hour):
			t.Error("the handler was not told")
		}
		if cause := context.Cause(ctx); !errors.Is(cause, want) || time.Since(begin) > within {
			t.Errorf("after %v: %v; want %v within %v", time.Since(begin), cause, want, within)
		}
		return endpoint.Response{}, false
	}
}

func TestALossOfALockAroundTheEngineEndsTheHandler(t *testing.T) {
	inBubble(t, func(w *world) {
		locks, e := memstore.New(), w.engine(idempotency.MaxHold(time.Hour))
		take := func() {
			locks.Expire("account")
			locks.Take("account", time.Hour)
		}
		inside, _ := w.around(w.Context(), locks, e, ended(t, take, core.ErrLost, 10*time.Second))
		w.want(inside, "ran, then lost")
		n := 0
		w.want(serve(w.Context(), e, post("k"), answers(200, &n)), "idempotency-in-flight") // until the claim lapses
	})
	inBubble(t, func(w *world) {
		e := w.engine(idempotency.MaxHold(time.Hour))
		inside, _ := w.around(w.Context(), memstore.New(), e, ended(t, func() {}, core.ErrMaxHold, time.Minute), core.MaxHold(time.Minute))
		w.want(inside, "ran, then max-hold")
	})
}

// The lease's context ends with the client, and says nothing of the lease any more.
func TestALossOfALockAroundTheEngineEndsTheHandlerWhoseClientHasGone(t *testing.T) {
	inBubble(t, func(w *world) {
		locks, e := memstore.New(), w.engine(idempotency.MaxHold(time.Hour))
		ctx, leave := context.WithCancel(w.Context())
		lose := func() {
			leave()
			<-time.After(5 * time.Minute) // the lease is renewed all the time
			if err := core.LeaseFromContext(ctx).Err(); !errors.Is(err, core.ErrNoLease) {
				t.Error(err)
			}
			locks.Intercept(func(memstore.Request) memstore.Fault { return memstore.Unreachable })
		}
		inside, _ := w.around(ctx, locks, e, ended(t, lose, core.ErrLost, time.Minute))
		w.want(inside, "ran, then lost")
		locks.Intercept(nil)
	})
}

func TestALockAroundTheEngineThatIsNotLostEndsNothing(t *testing.T) {
	n := 0
	for name, h := range map[string]handler{
		"client gone": func(ctx context.Context, a endpoint.Attempt) (endpoint.Response, bool) {
			<-time.After(5 * time.Minute)
			if ctx.Err() != nil {
				t.Error(context.Cause(ctx))
			}
			return answers(201, &n)(ctx, a)
		},
		"released early": func(ctx context.Context, a endpoint.Attempt) (endpoint.Response, bool) {
			_ = core.LeaseFromContext(ctx).Release(ctx)
			<-time.After(5 * time.Minute)
			if ctx.Err() != nil {
				t.Error(context.Cause(ctx))
			}
			return answers(201, &n)(ctx, a)
		},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(w *world) {
				n = 0
				e := w.engine(idempotency.MaxHold(time.Hour))
				ctx, leave := context.WithCancel(w.Context())
				time.AfterFunc(time.Second, leave)
				inside, refusal := w.around(ctx, memstore.New(), e, h)
				w.want(inside, "201 run 1")
				if refusal != nil {
					t.Errorf("refused: %+v", refusal)
				}
			})
		})
	}
}

// An answer that came counts, as it does where the lock is inside.
func TestAnAnswerAfterALossOfALockAroundTheEngineIsStored(t *testing.T) {
	inBubble(t, func(w *world) {
		locks, e, n := memstore.New(), w.engine(), 0
		inside, _ := w.around(w.Context(), locks, e, func(ctx context.Context, a endpoint.Attempt) (endpoint.Response, bool) {
			locks.Expire("account")
			<-ctx.Done()
			return answers(201, &n)(ctx, a)
		})
		w.want(inside, "201 run 1")
		w.want(serve(w.Context(), e, post("k"), answers(201, &n)), "replay 201 run 1")
	})
}
