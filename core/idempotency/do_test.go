package idempotency_test

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

type order struct {
	Account string
	Amount  int
}

type receipt struct{ Run int }

// function is what the tests call: it counts its runs, and does what it is told.
type function struct {
	runs int
	then func(ctx context.Context) error // nil: it succeeds
}

func (f *function) charge(ctx context.Context, _ order) (receipt, error) {
	f.runs++
	if f.then != nil {
		if err := f.then(ctx); err != nil {
			return receipt{-1}, err
		}
	}
	return receipt{f.runs}, nil
}

// functions makes an engine for functions.
func (w *world) functions(opts ...idempotency.Option) *idempotency.Engine {
	w.Helper()
	return w.engine(append([]idempotency.Option{idempotency.Global()}, opts...)...)
}

// wantRun calls the function and wants the result of a run.
func (w *world) wantRun(e *idempotency.Engine, key string, f *function, run int, opts ...once.Option) {
	w.Helper()
	got, err := once.Do(w.Context(), e, key, order{"a", 1}, f.charge, opts...)
	if err != nil || got.Run != run {
		w.Errorf("%s: %+v, %v; want the result of run %d", key, got, err, run)
	}
}

// wantRefused calls the function and wants a refusal.
func (w *world) wantRefused(
	e *idempotency.Engine, key string, f *function, want error, reason reason.Reason, opts ...once.Option,
) {
	w.Helper()
	_ = w.refusal(e, key, order{"a", 1}, f, want, reason, opts...)
}

// refusal calls the function and wants a refusal, which it returns.
func (w *world) refusal(
	e *idempotency.Engine, key string, in order, f *function, want error, reason reason.Reason, opts ...once.Option,
) *once.RefusedError {
	w.Helper()
	runs := f.runs
	got, err := once.Do(w.Context(), e, key, in, f.charge, opts...)
	var refused *once.RefusedError
	if !errors.As(err, &refused) || !errors.Is(err, want) || refused.Refusal.Reason != reason || got != (receipt{}) {
		w.Fatalf("%s: %+v, %v; want a refusal for %s that matches %q", key, got, err, reason, want)
	}
	if f.runs != runs && !refused.Refusal.Ran {
		w.Errorf("%s: refused, and run all the same", key)
	}
	return refused
}

func TestAFunctionRunsOnceForAKey(t *testing.T) {
	inBubble(t, func(w *world) {
		var f function
		first, second := w.functions(idempotency.Name("charge")), w.functions()
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
				e, f := w.functions(c.opts...), function{then: c.then}
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

// underLock is Under for a rule on a store in memory.
func (w *world) underLock() idempotency.Option {
	w.Helper()
	locker, err := core.New(memstore.New())
	if err != nil {
		w.Fatal(err)
	}
	w.Cleanup(func() { _ = locker.Close(context.Background()) })
	return idempotency.Under(core.Serialize(locker, "jobs"))
}

func TestAPanicOfAFunctionPassesThrough(t *testing.T) {
	inBubble(t, func(w *world) {
		e := w.functions()
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
		wg.Go(func() { w.wantRun(w.functions(), "k", &slow, 1) })
		synctest.Wait()
		var f function
		refused := w.refusal(w.functions(), "k", order{"a", 1}, &f, idempotency.ErrInFlight, reason.InFlight)
		if once.Permanent(refused) || refused.RetryAfter != time.Second {
			t.Errorf("in flight: %+v; it passes", refused)
		}
		w.wantRun(w.functions(idempotency.WaitReplay(time.Minute)), "k", &f, 1)
		if f.runs != 0 {
			t.Error("the one that waited ran it too")
		}
		wg.Wait()
	})
}

// diesIn lets an engine fall silent in the middle of a function, for longer than its
// lease.
func (w *world) diesIn(key string, before func(ctx context.Context)) {
	w.Helper()
	dead := w.functions()
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
		w.Errorf("the one that died got %v", err)
	}
	if !errors.Is(err, context.Canceled) || !strings.Contains(err.Error(), "the function returned: context canceled") {
		w.Errorf("what the function returned is not in %q", err)
	}
	w.store.lapse()
}

func TestAFunctionWhoseProcessDied(t *testing.T) {
	inBubble(t, func(w *world) {
		var keys []string
		e := w.functions()
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

func TestTheSpacesOfKeysOfFunctions(t *testing.T) {
	inBubble(t, func(w *world) {
		var f function
		n := 0
		http := w.engine() // by the header Authorization
		w.want(serve(w.Context(), http, post(`"k"`), answers(200, &n)), "200 run 1")
		alice := once.Metadata(map[string]string{"authorization": "alice"})
		w.wantRun(http, "k", &f, 1, alice)
		w.wantRun(http, "k", &f, 1, alice)
		w.wantRun(http, "k", &f, 1, once.Scoped("alice"))
		w.want(serve(w.Context(), http, post(`"k"`), answers(200, &n)), "replay 200 run 1")
		w.wantRun(http, "k", &f, 2, once.Scoped("bob"))

		global := w.functions()
		w.wantRun(global, "k", &f, 3)
		w.wantRun(global, "k", &f, 1, once.Scoped("alice"))
		nobody := once.Metadata(map[string]string{"Authorization": ""})
		w.wantRefused(http, "k", &f, core.ErrKey, reason.NoPrincipal, nobody)
		w.wantRefused(global, "k", &f, core.ErrKey, reason.NoPrincipal, once.Scoped(""))
		w.wantRefused(http, "k", &f, errScope, reason.Internal,
			once.Metadata(map[string]string{"Authorization": "broken"}))
	})
}

func TestTheKeysOfFunctions(t *testing.T) {
	inBubble(t, func(w *world) {
		var f function
		e := w.functions(idempotency.Optional()) // for requests
		for i, key := range []string{"k", `"k"`, "Überweisung \x00", " k", strings.Repeat("k", 512)} {
			w.wantRun(e, key, &f, i+1)
			w.wantRun(e, key, &f, i+1)
		}
		for _, key := range []string{"", strings.Repeat("k", 513)} {
			refused := w.refusal(e, key, order{}, &f, endpoint.ErrKeyMalformed, reason.KeyMalformed)
			if !once.Permanent(refused) || !strings.Contains(refused.Error(), "malformed idempotency key: ") {
				t.Errorf("%v", refused)
			}
		}
	})
}

func TestAFunctionUnderALock(t *testing.T) {
	inBubble(t, func(w *world) {
		s := memstore.New()
		locker, err := core.New(s)
		if err != nil {
			t.Fatal(err)
		}
		defer locker.Close(context.Background())
		native := core.KeyFunc(func(_ context.Context, req core.Request) ([]string, error) {
			key, err := core.Key("amount", fmt.Sprint(req.Native().(order).Amount))
			return []string{key}, err
		})
		e := w.functions(idempotency.Under(core.Serialize(locker, "account/{account}", core.And("tenant/{header.X-Tenant}"), native, core.Wait(0))))
		meta := once.Metadata(map[string]string{"account": "42", "x-tenant": "acme"})
		f := function{then: func(ctx context.Context) error {
			if got := fmt.Sprint(core.LeaseFromContext(ctx).Keys()); got != "[account/42 amount/1 tenant/acme]" {
				t.Errorf("locked: %s", got)
			}
			return nil
		}}
		free := s.Take("account/42", time.Hour)
		refused := w.refusal(e, "k", order{"a", 1}, &f, core.ErrHeld, reason.Held, meta)
		if once.Permanent(refused) || refused.RetryAfter != time.Second || strings.Contains(refused.Error(), "account/42") {
			t.Errorf("held: %+v %v", refused, refused)
		}
		free()
		w.wantRun(e, "k", &f, 1, meta)
		s.Take("account/42", time.Hour)
		w.wantRun(e, "k", &f, 1, meta) // a replay takes no lock
		bad := w.refusal(e, "other", order{"a", 1}, &f, core.ErrKey, reason.BadKey)
		if !once.Permanent(bad) {
			t.Errorf("without metadata: %v", bad)
		}
	})
}

func TestWhatCannotBeEncodedOrIsTooLong(t *testing.T) {
	type odd struct {
		Text string
		Fail bool
	}
	refuses := errors.New("cannot be encoded")
	marshal := func(v any) ([]byte, error) {
		switch o := v.(odd); {
		case o.Text == "panic":
			panic("in the codec")
		case o.Fail:
			return nil, refuses
		default:
			return []byte(o.Text), nil
		}
	}
	unmarshal := func(b []byte, v any) error {
		if string(b) == "unreadable" {
			return refuses
		}
		v.(*odd).Text = string(b)
		clear(b) // it is the codec's own
		return nil
	}
	inBubble(t, func(w *world) {
		e := w.functions(idempotency.MaxRequest(10), idempotency.MaxResponse(10))
		runs := 0
		do := func(in, out odd) (odd, error) {
			return once.Do(w.Context(), e, in.Text, in, func(context.Context, odd) (odd, error) {
				runs++
				return out, nil
			}, once.Codec(marshal, unmarshal))
		}
		for range 3 {
			if got, err := do(odd{Text: "good"}, odd{Text: "result"}); err != nil || got.Text != "result" {
				t.Errorf("%+v, %v", got, err)
			}
		}
		for _, out := range []odd{{Text: "x", Fail: true}, {Text: "panic"}, {Text: "too long to be kept"}} {
			in := odd{Text: out.Text[:1]}
			if got, err := do(in, out); err != nil || got != out {
				t.Errorf("%+v: its own caller got %+v, %v", out, got, err)
			}
			if _, err := do(in, out); !errors.Is(err, idempotency.ErrResponseUnavailable) || !once.Permanent(err) {
				t.Errorf("%+v: the next caller got %v", out, err)
			}
		}
		if got, err := do(odd{Text: "u"}, odd{Text: "unreadable"}); err != nil || got.Text != "unreadable" {
			t.Errorf("%+v, %v", got, err)
		}
		if _, err := do(odd{Text: "u"}, odd{}); !errors.Is(err, idempotency.ErrResponseUnavailable) || !errors.Is(err, refuses) {
			t.Errorf("a stored result that cannot be read: %v", err)
		}
		if runs != 5 {
			t.Errorf("%d runs, want 5", runs)
		}
		if _, err := do(odd{Text: "i", Fail: true}, odd{}); !errors.Is(err, core.ErrConfig) || !errors.Is(err, refuses) {
			t.Errorf("an input that cannot be encoded: %v", err)
		}
		if _, err := do(odd{Text: "eleven byte"}, odd{}); !once.Permanent(err) || !strings.Contains(fmt.Sprint(err), "body-too-large") {
			t.Errorf("an input over the limit: %v", err)
		}
		if _, err := once.Do(w.Context(), e, "k", 1, func(context.Context, int) (int, error) {
			runs++
			return 0, nil
		}, once.Codec(nil, unmarshal), nil); !errors.Is(err, core.ErrConfig) {
			t.Errorf("a codec that is nil: %v", err)
		}
		if runs != 5 {
			t.Error("refused, and run all the same")
		}
	})
}

func TestTheContextOfAFunction(t *testing.T) {
	inBubble(t, func(w *world) {
		e := w.functions()
		type key struct{}
		shutdown := errors.New("shutdown")
		call := func(name string, f *function, opts ...once.Option) error {
			ctx, cancel := context.WithCancelCause(context.WithValue(w.Context(), key{}, "v"))
			ctx, stop := context.WithTimeout(ctx, time.Hour)
			defer stop()
			time.AfterFunc(time.Second, func() { cancel(shutdown) })
			_, err := once.Do(ctx, e, name, order{"a", 1}, f.charge, opts...)
			return err
		}
		var left []context.Context
		f := function{then: func(ctx context.Context) error {
			left = append(left, ctx)
			_, limited := ctx.Deadline()
			select {
			case <-ctx.Done():
				return context.Cause(ctx)
			case <-time.After(time.Minute):
			}
			if ctx.Value(key{}) != "v" || limited {
				return fmt.Errorf("value %v, a deadline %v", ctx.Value(key{}), limited)
			}
			return nil
		}}
		if err := call("goes on", &f); err != nil {
			t.Errorf("the end of the caller's context: %v", err)
		}
		if err := call("ends", &f, once.Cancelable()); !errors.Is(err, shutdown) {
			t.Errorf("Cancelable: %v", err)
		}
		for _, ctx := range left {
			if ctx.Err() == nil {
				t.Error("the context of a function that has returned has not ended")
			}
		}
		if at, ok := left[1].Deadline(); !ok || time.Until(at) > time.Hour {
			t.Errorf("Cancelable: deadline %v, %v", at, ok)
		}
		f.then = nil
		w.wantRun(e, "ends", &f, 3)
		w.wantRun(e, "goes on", &f, 1)
	})
}

func TestAFunctionWithoutAStore(t *testing.T) {
	inBubble(t, func(w *world) {
		w.store.down()
		var f function
		refused := w.refusal(w.functions(), "k", order{}, &f, core.ErrUnavailable, reason.NoRecord)
		if once.Permanent(refused) || refused.RetryAfter == 0 {
			t.Errorf("%+v: it passes", refused)
		}
		open := w.functions(idempotency.FailOpen())
		w.wantRun(open, "k", &f, 1)
		broken := errors.New("broken")
		f.then = func(context.Context) error { return once.Final(broken) }
		if _, err := once.Do(w.Context(), open, "k", order{}, f.charge); !errors.Is(err, broken) {
			t.Errorf("without a record: %v", err)
		}
		closed := w.functions()
		if err := closed.Close(w.Context()); err != nil {
			t.Fatal(err)
		}
		w.wantRefused(closed, "k", &f, core.ErrClosed, reason.Closing)
	})
}

// A consumer that was too slow gets what the other one has stored.
func TestAFunctionThatAnotherProcessHasOvertaken(t *testing.T) {
	inBubble(t, func(w *world) {
		other := function{runs: 10}
		slow := function{then: func(context.Context) error {
			w.store.lapse()
			w.wantRun(w.functions(), "k", &other, 11)
			return nil
		}}
		w.wantRun(w.functions(), "k", &slow, 11)
		if slow.runs != 1 || other.runs != 11 {
			t.Errorf("%d and %d runs", slow.runs, other.runs)
		}
	})
}

func TestAFunctionInsideItself(t *testing.T) {
	inBubble(t, func(w *world) {
		e := w.functions()
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
		// What is refused inside is no answer, and the stored error of a step is one.
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
