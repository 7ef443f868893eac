package once_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/idempotency"
	"github.com/interlock-go/interlock/core/idempotency/admin"
	"github.com/interlock-go/interlock/core/idempotency/endpoint"
	"github.com/interlock-go/interlock/core/idempotency/once"
	"github.com/interlock-go/interlock/core/memstore"
	"github.com/interlock-go/interlock/core/reason"
)

func TestAFunctionRunsOnceForAKey(t *testing.T) {
	inBubble(t, func(w *world) {
		var f function
		first, second := w.engine(idempotency.Name("charge")), w.engine()
		w.wantRun(first, "m1", &f, 1)
		w.wantRun(first, "m1", &f, 1)
		w.wantRun(second, "m1", &f, 1)
		w.wantRun(second, "m2", &f, 2)
		refused := w.refusal(first, "m1", order{"a", 2}, &f, idempotency.ErrKeyReused, reason.KeyReused)
		if !once.Permanent(refused) || refused.RetryAfter != 0 {
			t.Errorf("%+v: it never passes", refused)
		}
		if text := refused.Error(); !strings.Contains(text, "rule=charge") || strings.Contains(text, "m1") {
			t.Errorf("the error says %q", text)
		}
		<-time.After(25 * time.Hour)
		w.wantRun(second, "m1", &f, 3)
	})
}

func TestWhichErrorsOfAFunctionAreStored(t *testing.T) {
	closed := errors.New("the account is closed")
	marked := func(ctx context.Context) error {
		if err := idempotency.MarkEffect(ctx); err != nil {
			return err
		}
		return closed
	}
	returns := func(err error) func(context.Context) error { return func(context.Context) error { return err } }
	for name, c := range map[string]struct {
		then   func(context.Context) error
		opts   []idempotency.Option
		lock   bool
		first  bool // the first call gets a StoredError
		stored string
	}{
		"an error":              {then: returns(closed)},
		"a final error":         {then: returns(once.Final(closed)), first: true, stored: "the account is closed"},
		"wrapped":               {then: returns(fmt.Errorf("charge: %w", once.Final(closed))), first: true, stored: "charge: the account is closed"},
		"without a text":        {then: returns(once.Final(fmt.Errorf("%.0w", closed))), first: true, stored: ""},
		"after the mark":        {then: marked, stored: "the account is closed"},
		"strict":                {then: returns(closed), opts: []idempotency.Option{idempotency.Strict()}, stored: "the account is closed"},
		"all":                   {then: returns(closed), opts: []idempotency.Option{idempotency.StoreAll()}, stored: "the account is closed"},
		"final, under a lock":   {then: returns(once.Final(closed)), lock: true, first: true, stored: "the account is closed"},
		"an error under a lock": {then: returns(closed), lock: true},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(w *world) {
				if c.lock {
					c.opts = append(c.opts, w.underLock())
				}
				e, f := w.engine(c.opts...), function{then: c.then}
				_, err := once.Do(w.Context(), e, "k", order{}, f.charge)
				var stored *once.StoredError
				if !errors.Is(err, closed) || errors.As(err, &stored) != c.first || once.Permanent(err) != c.first {
					t.Errorf("the first call got %v (%T)", err, err)
				}
				if c.first && (stored.Text != c.stored || stored.Replayed) {
					t.Errorf("the first call got %+v", stored)
				}
				f.then = nil
				got, err := once.Do(w.Context(), e, "k", order{}, f.charge)
				if c.stored == "" && !c.first {
					if err != nil || got.Run != 2 {
						t.Errorf("the second call got %+v, %v", got, err)
					}
					return
				}
				if !errors.As(err, &stored) || stored.Text != c.stored || !stored.Replayed || errors.Is(err, closed) ||
					!once.Permanent(err) || got != (receipt{}) || f.runs != 1 {
					t.Errorf("the second call got %+v, %v (%T) after %d runs", got, err, err, f.runs)
				}
			})
		})
	}
	if once.Final(nil) != nil || once.Refused(nil) != nil || once.Permanent(nil) || once.Permanent(closed) {
		t.Error("no error is one")
	}
}

func TestAPanicOfAFunctionPassesThrough(t *testing.T) {
	inBubble(t, func(w *world) {
		e := w.engine()
		panics := func(key string, f *function) {
			t.Helper()
			defer func() {
				if p := recover(); p != "broken" {
					t.Errorf("recovered %v", p)
				}
			}()
			_, _ = once.Do(w.Context(), e, key, order{"a", 1}, f.charge)
		}
		f := function{then: func(context.Context) error { panic("broken") }}
		panics("k", &f)
		f.then = nil
		w.wantRun(e, "k", &f, 2)

		f.then = func(ctx context.Context) error {
			if err := idempotency.MarkEffect(ctx); err != nil {
				t.Error(err)
			}
			panic("broken")
		}
		panics("marked", &f)
		var stored *once.StoredError
		if _, err := once.Do(w.Context(), e, "marked", order{"a", 1}, f.charge); !errors.As(err, &stored) || !stored.Replayed {
			t.Errorf("after a panic behind the mark: %v", err)
		}
	})
}

func TestACallWhileTheFunctionRuns(t *testing.T) {
	inBubble(t, func(w *world) {
		slow := function{then: func(context.Context) error {
			<-time.After(10 * time.Second)
			return nil
		}}
		var wg sync.WaitGroup
		wg.Go(func() { w.wantRun(w.engine(), "k", &slow, 1) })
		synctest.Wait()
		var f function
		refused := w.refusal(w.engine(), "k", order{"a", 1}, &f, idempotency.ErrInFlight, reason.InFlight)
		if once.Permanent(refused) || refused.RetryAfter != time.Second {
			t.Errorf("in flight: %+v; it passes", refused)
		}
		w.wantRun(w.engine(idempotency.WaitReplay(time.Minute)), "k", &f, 1)
		if f.runs != 0 {
			t.Error("the call that waited ran it too")
		}
		wg.Wait()
	})
}

// diesIn lets an engine fall silent in the middle of a function, for longer than its
// lease.
func (w *world) diesIn(key string, before func(ctx context.Context)) {
	w.Helper()
	dead := w.engine()
	f := function{then: func(ctx context.Context) error {
		before(ctx)
		closing, cancel := context.WithCancel(context.Background())
		cancel()
		_ = dead.Close(closing) // ends ctx
		<-ctx.Done()
		return ctx.Err()
	}}
	_, err := once.Do(w.Context(), dead, key, order{"a", 1}, f.charge)
	var refused *once.RefusedError
	if !errors.As(err, &refused) || !refused.Refusal.Ran || refused.RetryAfter != 30*time.Second {
		w.Errorf("the call that died got %v", err)
	}
	if !errors.Is(err, context.Canceled) || !strings.Contains(err.Error(), "the function returned: context canceled") {
		w.Errorf("what the function returned is not in %q", err)
	}
	w.store.LapseClaims()
}

func TestAFunctionWhoseProcessDied(t *testing.T) {
	inBubble(t, func(w *world) {
		var keys []string
		e := w.engine()
		f := function{then: func(ctx context.Context) error {
			keys = append(keys, idempotency.DownstreamKey(ctx))
			if g := idempotency.Generation(ctx); g != 2 {
				t.Errorf("generation %d, want 2", g)
			}
			return nil
		}}
		w.diesIn("k", func(ctx context.Context) { keys = append(keys, idempotency.DownstreamKey(ctx)) })
		w.wantRun(e, "k", &f, 1)
		if keys[0] == "" || keys[0] != keys[1] {
			t.Errorf("the keys downstream of the two attempts: %q", keys)
		}

		mark := func(ctx context.Context) {
			if err := idempotency.MarkEffect(ctx); err != nil {
				t.Error(err)
			}
		}
		w.diesIn("marked", mark)
		unknown := w.refusal(e, "marked", order{"a", 1}, &f, idempotency.ErrOutcomeUnknown, reason.OutcomeUnknown)
		if !once.Permanent(unknown) {
			t.Errorf("%+v: it does not pass by itself", unknown)
		}
		found := admin.CarriedOut(endpoint.Func, endpoint.Response{Body: []byte(`{"Run":7}`)})
		if err := e.Resolve(w.Context(), once.ScopeOf(""), "marked", found); err != nil {
			t.Fatal(err)
		}
		w.wantRun(e, "marked", &f, 7)

		w.diesIn("forgotten", mark)
		if err := e.Forget(w.Context(), once.ScopeOf(""), "forgotten"); err != nil {
			t.Fatal(err)
		}
		f.then = nil
		w.wantRun(e, "forgotten", &f, 2)
		bad := admin.CarriedOut(endpoint.Func, endpoint.Response{Status: 200})
		if err := e.Resolve(w.Context(), once.ScopeOf(""), "marked", bad); !errors.Is(err, core.ErrConfig) {
			t.Errorf("resolved with a status that no function has: %v", err)
		}
	})
}

func TestAFunctionWithoutAStore(t *testing.T) {
	inBubble(t, func(w *world) {
		w.store.Intercept(func(memstore.Request) memstore.Fault { return memstore.Unreachable })
		var f function
		refused := w.refusal(w.engine(), "k", order{}, &f, core.ErrUnavailable, reason.NoRecord)
		if once.Permanent(refused) || refused.RetryAfter == 0 {
			t.Errorf("%+v: it passes", refused)
		}
		open := w.engine(idempotency.FailOpen())
		w.wantRun(open, "k", &f, 1)
		broken := errors.New("broken")
		f.then = func(context.Context) error { return once.Final(broken) }
		if _, err := once.Do(w.Context(), open, "k", order{}, f.charge); !errors.Is(err, broken) {
			t.Errorf("without a record: %v", err)
		}
		closed := w.engine()
		if err := closed.Close(w.Context()); err != nil {
			t.Fatal(err)
		}
		w.wantRefused(closed, "k", &f, core.ErrClosed, reason.Closing)
	})
}

func TestAFunctionInsideItself(t *testing.T) {
	inBubble(t, func(w *world) {
		e := w.engine()
		var inner function
		outer := function{then: func(ctx context.Context) error {
			got, err := once.Do(ctx, e, "k", order{"a", 1}, inner.charge)
			if err != nil || got.Run != 1 {
				t.Errorf("the same work: %+v, %v", got, err)
			}
			if _, err := once.Do(ctx, e, "k", order{"a", 2}, inner.charge); !errors.Is(err, idempotency.ErrKeyReused) {
				t.Errorf("other work with its key: %v", err)
			}
			if _, err := once.Do(ctx, e, "k/step", order{"a", 2}, inner.charge); err != nil {
				t.Errorf("a step: %v", err)
			}
			return nil
		}}
		w.wantRun(e, "k", &outer, 1)
		if inner.runs != 2 {
			t.Errorf("%d runs inside, want 2", inner.runs)
		}
		// A refusal inside is no answer, and the stored error of a step is one.
		closed := errors.New("closed")
		outer.then = func(ctx context.Context) error {
			inner.then = func(context.Context) error { return once.Final(closed) }
			_, err := once.Do(ctx, e, "step", order{}, inner.charge)
			return err
		}
		for range 2 {
			var stored *once.StoredError
			if _, err := once.Do(w.Context(), e, "of a step", order{}, outer.charge); !errors.As(err, &stored) {
				t.Errorf("%v", err)
			}
		}
		if outer.runs != 2 {
			t.Errorf("%d runs outside, want 2", outer.runs)
		}
	})
}
