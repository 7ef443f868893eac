package fleet_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/fleet"
	"github.com/interlock-go/interlock/core/redisstore"
	"github.com/interlock-go/interlock/internal/redistest"
)

func TestMain(m *testing.M) { redistest.Main(m) }

// topologies are clients for each kind of servers, all empty.
func topologies(t *testing.T, test func(t *testing.T, rdb redis.UniversalClient)) {
	t.Helper()
	for name, client := range map[string]func(t *testing.T) redis.UniversalClient{
		"single":   func(t *testing.T) redis.UniversalClient { return redistest.Shared(t).Client(t) },
		"sentinel": func(t *testing.T) redis.UniversalClient { return redistest.Sentinel(t, 1).Client(t) },
		"cluster":  func(t *testing.T) redis.UniversalClient { return redistest.Cluster(t, 3, 0).Client(t) },
	} {
		t.Run(name, func(t *testing.T) { test(t, client(t)) })
	}
}

func quiet() *slog.Logger { return slog.New(slog.NewTextHandler(io.Discard, nil)) }

// open makes a Fleet.
func open(t *testing.T, rdb redis.UniversalClient, opts ...fleet.Option) *fleet.Fleet {
	t.Helper()
	f, err := fleet.New(rdb, append([]fleet.Option{fleet.Logger(quiet())}, opts...)...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := f.Close(); err != nil {
			t.Error(err)
		}
	})
	return f
}

// process makes a locker with a store of its own, as another process has.
func process(t *testing.T, rdb redis.UniversalClient, opts ...core.LockerOption) *core.Locker {
	t.Helper()
	store, err := redisstore.New(rdb, redisstore.Timeout(10*time.Second)) // a busy machine may need more than a second
	if err != nil {
		t.Fatal(err)
	}
	l, err := core.New(store, opts...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithCancel(context.Background())
		cancel() // locks that a test leaves held are lost
		_ = l.Close(ctx)
		_ = store.Close()
	})
	return l
}

func lock(t *testing.T, l *core.Locker, key string, opts ...core.Option) *core.Lease {
	t.Helper()
	lease, err := l.Lock(t.Context(), key, opts...)
	if err != nil {
		t.Fatal(err)
	}
	return lease
}

// eventually waits until a lock in Redis is as it should be.
func eventually(t *testing.T, f *fleet.Fleet, key string, right func(l fleet.Lock) bool) (l fleet.Lock) {
	t.Helper()
	redistest.Eventually(t, time.Minute, func(ctx context.Context) error {
		var err error
		if l, err = f.Inspect(ctx, key); err == nil && !right(l) {
			err = fmt.Errorf("%+v", l)
		}
		return err
	})
	return l
}

// list collects the locks that fit a pattern, by key.
func list(t *testing.T, f *fleet.Fleet, pattern string) map[string]fleet.Lock {
	t.Helper()
	all := map[string]fleet.Lock{}
	for l, err := range f.Locks(t.Context(), pattern) {
		if err != nil {
			t.Fatal(err)
		}
		all[l.Key] = l
	}
	return all
}

func wantErr(t *testing.T, err, want error) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Errorf("error is %v, want %v", err, want)
	}
}
