package adaptertest

import (
	"context"
	"errors"
	"log/slog"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/idempotency"
	"github.com/interlock-go/interlock/core/redisstore"
	"github.com/interlock-go/interlock/internal/redistest"
)

// Locker returns a locker on the shared server, with an empty database.
func Locker(tb testing.TB, opts ...core.LockerOption) *core.Locker {
	tb.Helper()
	return LockerOn(tb, redistest.Shared(tb).Client(tb), opts...)
}

// LockerOn returns a locker on a server. It is closed when the test ends, and fails
// it if a lock is still held then.
func LockerOn(tb testing.TB, rdb *redis.Client, opts ...core.LockerOption) *core.Locker {
	tb.Helper()
	return LockerOf(tb, Store(tb, rdb), opts...)
}

// LockerOf is LockerOn on a store.
func LockerOf(tb testing.TB, store core.Store, opts ...core.LockerOption) *core.Locker {
	tb.Helper()
	locker, err := core.New(store, opts...)
	if err != nil {
		tb.Fatal(err)
	}
	closeAfter(tb, locker.Close)
	return locker
}

// Store returns a store on a server. It is closed when the test ends.
func Store(tb testing.TB, rdb *redis.Client, opts ...redisstore.Option) *redisstore.Store {
	tb.Helper()
	store, err := redisstore.New(rdb, append([]redisstore.Option{redisstore.Logger(slog.New(slog.DiscardHandler))}, opts...)...)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if err := store.Close(); err != nil {
			tb.Error(err)
		}
	})
	return store
}

// Engine returns an engine on the shared server whose keys are everybody's.
func Engine(tb testing.TB, opts ...idempotency.Option) *idempotency.Engine {
	tb.Helper()
	return EngineOn(tb, Store(tb, redistest.Shared(tb).Client(tb)), append([]idempotency.Option{idempotency.Global()}, opts...)...)
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

// Free reports whether the key of a lock is free on a server.
func Free(tb testing.TB, rdb *redis.Client, key string) bool {
	tb.Helper()
	n, err := rdb.Exists(context.WithoutCancel(tb.Context()), "interlock:{"+key+"}").Result()
	if err != nil {
		tb.Error(err)
	}
	return n == 0
}

// Lose takes the lease of a context away and waits until the context ends.
func Lose(ctx context.Context, tb testing.TB, rdb *redis.Client) {
	lease := core.LeaseFromContext(ctx)
	if n, err := rdb.Del(ctx, "interlock:{"+lease.Key()+"}").Result(); n != 1 || err != nil {
		tb.Errorf("deleted %d, %v", n, err)
	}
	if err := lease.Check(ctx); !errors.Is(err, core.ErrLost) { // asks now, as the watchdog does later
		tb.Errorf("check: %v; want ErrLost", err)
	}
	<-ctx.Done()
	if cause := context.Cause(ctx); !errors.Is(cause, core.ErrLost) {
		tb.Errorf("cause %v; want ErrLost", cause)
	}
}
