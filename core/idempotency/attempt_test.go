package idempotency_test

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
	"github.com/interlock-go/interlock/core/memstore"
)

func TestMarkEffectFailsWhereTheEffectMustNotHappen(t *testing.T) {
	inBubble(t, func(w *world) {
		e := w.engine()
		n := 0
		try := func(key string, before func(), want error) handler {
			return func(ctx context.Context, a endpoint.Attempt) (endpoint.Response, bool) {
				before()
				err := idempotency.MarkEffect(ctx)
				if !errors.Is(err, want) {
					t.Errorf("%s: %v", key, err)
				}
				if strings.Contains(fmt.Sprint(err), key) {
					t.Errorf("the error shows the key: %v", err)
				}
				if want == core.ErrLost && !errors.Is(context.Cause(ctx), want) { //nolint:errorlint // the test's own
					t.Errorf("the context has not ended: %v", context.Cause(ctx))
				}
				return answers(503, &n)(ctx, a)
			}
		}
		w.want(serve(w.Context(), e, post("secret-1"), try("secret-1", func() { w.down(memstore.Mark) }, core.ErrUnavailable)), "503 run 1")
		w.store.Intercept(nil)
		// The effect did not happen, so the claim was given up.
		w.want(serve(w.Context(), e, post("secret-1"), answers(200, &n)), "200 run 2")
		w.want(serve(w.Context(), e, post("secret-2"), try("secret-2", func() { w.store.TakeClaims(time.Hour) }, core.ErrLost)), "503 run 3")

		left := make(chan context.Context, 1)
		serve(w.Context(), e, post("k3"), func(ctx context.Context, a endpoint.Attempt) (endpoint.Response, bool) {
			left <- ctx
			return answers(500, &n)(ctx, a)
		})
		if err := idempotency.MarkEffect(<-left); !errors.Is(err, core.ErrLost) {
			t.Errorf("after the handler has returned: %v", err)
		}
	})
}

func TestTheDownstreamKeyIsTheSameInEveryAttempt(t *testing.T) {
	inBubble(t, func(w *world) {
		e := w.engine()
		seen := map[string]bool{}
		var first string
		for i := range 3 {
			serve(w.Context(), e, post("k"), func(ctx context.Context, _ endpoint.Attempt) (endpoint.Response, bool) {
				key := idempotency.DownstreamKey(ctx)
				if i == 0 {
					first = key
				}
				if key != first || len(key) != 36 || key[14] != '8' {
					t.Errorf("%q, the first was %q", key, first)
				}
				for _, k := range []string{key, idempotency.DownstreamKey(ctx, "fee"), idempotency.DownstreamKey(ctx, "f", "ee")} {
					seen[k] = true
				}
				return endpoint.Response{Status: 500}, true
			})
		}
		if len(seen) != 3 {
			t.Errorf("%d keys for three steps: %v", len(seen), seen)
		}
	})
}
