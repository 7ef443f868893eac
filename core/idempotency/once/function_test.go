package once_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/idempotency"
	"github.com/interlock-go/interlock/core/idempotency/endpoint"
	"github.com/interlock-go/interlock/core/idempotency/once"
	"github.com/interlock-go/interlock/core/memstore"
	"github.com/interlock-go/interlock/core/reason"
)

func TestTheSpacesOfKeysOfFunctions(t *testing.T) {
	inBubble(t, func(w *world) {
		var f function
		n := 0
		http := w.engine(idempotency.Scope(scope))
		request := func(want string) {
			t.Helper()
			if got := serve(w.Context(), http, &n); got != want {
				t.Errorf("a request with the key: %q, want %q", got, want)
			}
		}
		request("200 run 1")
		alice := once.Metadata(map[string]string{"authorization": "alice"})
		w.wantRun(http, "k", &f, 1, alice)
		w.wantRun(http, "k", &f, 1, alice)
		w.wantRun(http, "k", &f, 1, once.Scoped("alice"))
		request("replay 200 run 1")
		w.wantRun(http, "k", &f, 2, once.Scoped("bob"))

		global := w.engine()
		w.wantRun(global, "k", &f, 3)
		w.wantRun(global, "k", &f, 1, once.Scoped("alice"))
		unnamed := once.Metadata(map[string]string{"Authorization": ""})
		w.wantRefused(http, "k", &f, core.ErrKey, reason.NoPrincipal, unnamed)
		w.wantRefused(global, "k", &f, core.ErrKey, reason.NoPrincipal, once.Scoped(""))
		w.wantRefused(http, "k", &f, errScope, reason.Internal,
			once.Metadata(map[string]string{"Authorization": "broken"}))
	})
}

func TestTheKeysOfFunctions(t *testing.T) {
	inBubble(t, func(w *world) {
		var f function
		e := w.engine(idempotency.Optional()) // for requests
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
		e := w.engine(idempotency.Under(core.Serialize(locker, "account/{account}", core.And("tenant/{header.X-Tenant}"), native, core.Wait(0))))
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
		e := w.engine(idempotency.MaxRequest(10), idempotency.MaxResponse(10))
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
		e := w.engine()
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
