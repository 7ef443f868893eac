package idempotency_test

import (
	"context"
	"errors"
	"slices"
	"testing"

	"github.com/interlock-go/interlock/core/idempotency"
	"github.com/interlock-go/interlock/core/idempotency/once"
	"github.com/interlock-go/interlock/core/memstore"
)

// attempt runs f as an attempt of a function, and fails it, so that the next one runs too.
func failing(t *testing.T, engine *idempotency.Engine, key string, f func(ctx context.Context)) {
	t.Helper()
	fails := errors.New("the process dies")
	_, err := once.Do(t.Context(), engine, key, "", func(ctx context.Context, _ string) (string, error) {
		f(ctx)
		return "", fails
	})
	if !errors.Is(err, fails) {
		t.Fatalf("%v; want the attempt to run", err)
	}
}

func newEngine(t *testing.T) *idempotency.Engine {
	t.Helper()
	engine, err := idempotency.New(memstore.New(), idempotency.Global())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = engine.Close(context.Background()) })
	return engine
}

// keyOf returns the key of a call that ends at once.
func keyOf(ctx context.Context, t *testing.T, target string) string {
	t.Helper()
	key, found, done, err := idempotency.CallKey(ctx, target)
	if err != nil || found != (key != "") {
		t.Errorf("CallKey returns %q, %v, %v; want a key exactly where one is found", key, found, err)
	}
	done()
	return key
}

func TestCallsHaveTheSameKeysInEachAttempt(t *testing.T) {
	engine := newEngine(t)
	attempt := func(key string) (keys []string) {
		failing(t, engine, key, func(ctx context.Context) {
			keys = append(keys,
				keyOf(ctx, t, "POST /payments"), keyOf(ctx, t, "POST /payments"), keyOf(ctx, t, "POST /fees"),
				keyOf(idempotency.WithCall(ctx, "fee"), t, "POST /payments"),
				keyOf(idempotency.WithCall(ctx, "tip"), t, "POST /payments"),
				keyOf(idempotency.WithCall(ctx, "1"), t, "POST /payments"),
				idempotency.DownstreamKey(ctx), idempotency.DownstreamKey(ctx, "POST /payments", "1"))
			if again := keyOf(idempotency.WithCall(ctx, "fee"), t, "POST /payments"); again != keys[3] {
				t.Errorf("%s, then %s; want a name to stand for one call", keys[3], again)
			}
			if pinned := keyOf(idempotency.WithKey(ctx, "mine"), t, "POST /payments"); pinned != "mine" {
				t.Errorf("%q; want the explicit key", pinned)
			}
			if third := keyOf(ctx, t, "POST /payments"); slices.Contains(keys, third) {
				t.Error("the third call has the key of another one")
			}
		})
		return keys
	}
	first, second, other := attempt("order-17"), attempt("order-17"), attempt("order-18")
	if !slices.Equal(first, second) {
		t.Errorf("%q, then %q; want the same keys in each attempt", first, second)
	}
	all := slices.Sorted(slices.Values(slices.Concat(first, other)))
	if len(slices.Compact(all)) != len(first)+len(other) {
		t.Errorf("%q and %q; want a key of its own for each call of each request", first, other)
	}
}

func TestTwoCallsAtOnceToOneTargetAreNotNumberedByChance(t *testing.T) {
	failing(t, newEngine(t), "order-17", func(ctx context.Context) {
		_, _, done, err := idempotency.CallKey(ctx, "POST /payments")
		if err != nil {
			t.Fatal(err)
		}
		if _, _, end, err := idempotency.CallKey(ctx, "POST /payments"); !errors.Is(err, idempotency.ErrUnnamedCall) {
			t.Errorf("%v; want ErrUnnamedCall", err)
			end()
		}
		keyOf(ctx, t, "POST /fees") // another target
		keyOf(idempotency.WithCall(ctx, "fee"), t, "POST /payments")
		keyOf(idempotency.WithKey(ctx, "mine"), t, "POST /payments")
		done()
		keyOf(ctx, t, "POST /payments")
	})
}

// A key that a caller gives to a job is not the key of each call that the job makes.
func TestAKeyOfOutsideIsNotTheKeyOfTheCallsInside(t *testing.T) {
	engine := newEngine(t)
	ctx := idempotency.WithKey(t.Context(), "order-17")
	_, err := once.Do(ctx, engine, "job", "", func(ctx context.Context, _ string) (string, error) {
		if first, second := keyOf(ctx, t, "POST /payments"), keyOf(ctx, t, "POST /payments"); first == "order-17" || first == second {
			t.Errorf("%q and %q; want two keys of the job", first, second)
		}
		return "", nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if key := keyOf(ctx, t, "POST /payments"); key != "order-17" {
		t.Errorf("%q outside of the job; want the key of the context", key)
	}
	if key := keyOf(t.Context(), t, "POST /payments"); key != "" {
		t.Errorf("%q; want none", key)
	}
	if key := keyOf(idempotency.WithCall(t.Context(), "fee"), t, "POST /payments"); key != "" {
		t.Errorf("%q for a name outside of a handler; want none", key)
	}
}
