package testkit

import (
	"context"
	"errors"
	"testing"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/idempotency"
	"github.com/interlock-go/interlock/core/memstore"
)

// Locker returns a locker on a store in memory, its own.
func Locker(tb testing.TB, opts ...core.LockerOption) *core.Locker {
	tb.Helper()
	return LockerOn(tb, memstore.New(), opts...)
}

// LockerOn returns a locker on a store. It is closed when the test ends, and fails the
// test if a lock is still held then.
func LockerOn(tb testing.TB, store core.Store, opts ...core.LockerOption) *core.Locker {
	tb.Helper()
	locker, err := core.New(store, opts...)
	if err != nil {
		tb.Fatal(err)
	}
	closeAfter(tb, locker.Close)
	return locker
}

// Engine returns an engine with keys that all clients share, on a store in memory, its own.
func Engine(tb testing.TB, opts ...idempotency.Option) *idempotency.Engine {
	tb.Helper()
	return EngineOn(tb, memstore.New(), append([]idempotency.Option{idempotency.Global()}, opts...)...)
}

// EngineOn returns an engine on a store. It is closed when the test ends.
func EngineOn(tb testing.TB, store idempotency.Store, opts ...idempotency.Option) *idempotency.Engine {
	tb.Helper()
	engine, err := idempotency.New(store, opts...)
	if err != nil {
		tb.Fatal(err)
	}
	closeAfter(tb, engine.Close)
	return engine
}

// closeAfter closes something when the test ends.
func closeAfter(tb testing.TB, end func(ctx context.Context) error) {
	tb.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), Patience)
		defer cancel()
		if err := end(ctx); err != nil {
			tb.Error(err)
		}
	})
}

// Free reports whether a store in memory has no lock of a key.
func Free(store *memstore.Store, key string) bool {
	_, _, held := store.Holder(key)
	return !held
}

// Lose takes the lease of a context away and waits until the context ends.
func Lose(ctx context.Context, tb testing.TB, store *memstore.Store) {
	lease := core.LeaseFromContext(ctx)
	if !store.Expire(lease.Key()) {
		tb.Errorf("%s: there is no lock to lose", lease.Key())
	}
	if err := lease.Check(ctx); !errors.Is(err, core.ErrLost) { // asks now, as the watchdog does later
		tb.Errorf("check: %v; want ErrLost", err)
	}
	<-ctx.Done()
	if cause := context.Cause(ctx); !errors.Is(cause, core.ErrLost) {
		tb.Errorf("cause %v; want ErrLost", cause)
	}
}
