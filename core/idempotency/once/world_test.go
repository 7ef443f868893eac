package once_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/adapter"
	"github.com/interlock-go/interlock/core/idempotency"
	"github.com/interlock-go/interlock/core/idempotency/endpoint"
	"github.com/interlock-go/interlock/core/idempotency/once"
	"github.com/interlock-go/interlock/core/memstore"
	"github.com/interlock-go/interlock/core/reason"
)

// world is a store and the engines on it.
type world struct {
	*testing.T
	store *memstore.Store
}

// inBubble runs a test in fake time.
func inBubble(t *testing.T, f func(w *world)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) { f(&world{t, memstore.New()}) })
}

// engine is what a process has.
func (w *world) engine(opts ...idempotency.Option) *idempotency.Engine {
	w.Helper()
	e, err := idempotency.New(w.store, append([]idempotency.Option{idempotency.Global()}, opts...)...)
	if err != nil {
		w.Fatal(err)
	}
	w.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		_ = e.Close(ctx)
	})
	return e
}

var errScope = errors.New("the directory is down")

// scope finds the principal of a function in its metadata, and of a request in its header.
func scope(_ context.Context, req core.Request) (string, error) {
	s := req.Header("Authorization")[0]
	if s == "broken" {
		return "", errScope
	}
	return s, nil
}

// request is a request to an endpoint, with the key k of the principal alice.
type request struct{ adapter.Message }

func (*request) Protocol() string                 { return endpoint.HTTP }
func (*request) Key() (string, error)             { return "k", nil }
func (*request) Target() (string, string, string) { return "POST", "/payments", "" }
func (*request) Origin() (string, string, string) { return "", "/payments", "" }

// serve serves the request, and returns what its client sees, in one line.
func serve(ctx context.Context, e *idempotency.Engine, runs *int) string {
	q := &request{adapter.Message{Metadata: map[string]string{"Authorization": "alice"}}}
	var own endpoint.Response
	v := e.Do(ctx, q, endpoint.Handler{Run: func(context.Context, endpoint.Attempt) (endpoint.Response, bool) {
		*runs++
		own = endpoint.Response{Status: 200, Body: fmt.Appendf(nil, "run %d", *runs)}
		return own, true
	}})
	switch {
	case v.Refusal != nil:
		return string(v.Refusal.Reason)
	case v.Replay != nil:
		return fmt.Sprintf("replay %d %s", v.Replay.Status, v.Replay.Body)
	}
	return fmt.Sprintf("%d %s", own.Status, own.Body)
}

type order struct {
	Account string
	Amount  int
}

type receipt struct{ Run int }

// function is the function under test: it counts its runs, and then runs the code of
// the test.
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
	e *idempotency.Engine, key string, f *function, want error, why reason.Reason, opts ...once.Option,
) {
	w.Helper()
	_ = w.refusal(e, key, order{"a", 1}, f, want, why, opts...)
}

// refusal calls the function and wants a refusal, which it returns.
func (w *world) refusal(
	e *idempotency.Engine, key string, in order, f *function, want error, why reason.Reason, opts ...once.Option,
) *once.RefusedError {
	w.Helper()
	runs := f.runs
	got, err := once.Do(w.Context(), e, key, in, f.charge, opts...)
	var refused *once.RefusedError
	if !errors.As(err, &refused) || !errors.Is(err, want) || refused.Refusal.Reason != why || got != (receipt{}) {
		w.Fatalf("%s: %+v, %v; want a refusal for %s that matches %q", key, got, err, why, want)
	}
	if f.runs != runs && !refused.Refusal.Ran {
		w.Errorf("%s: refused, and run all the same", key)
	}
	return refused
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
