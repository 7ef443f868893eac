//go:build integration

package conformance_test

import (
	"log/slog"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/adapter/adaptertest"
	"github.com/interlock-go/interlock/core/redisstore"
	"github.com/interlock-go/interlock/internal/frameworks"
	"github.com/interlock-go/interlock/internal/redistest"
)

func TestMain(m *testing.M) { redistest.Main(m) }

func TestOneRuleExcludesAcrossProtocolsOnRedis(t *testing.T) {
	rdb := redistest.Shared(t).Client(t)
	adaptertest.RunAcross(t, func(tb testing.TB) core.Store { return newStore(tb, rdb, "across") }, frameworks.Protocols...)
}

// newStore returns a store that is closed when the test ends.
func newStore(tb testing.TB, rdb *redis.Client, prefix string) *redisstore.Store {
	tb.Helper()
	store, err := redisstore.New(rdb, redisstore.Prefix(prefix), redisstore.Logger(slog.New(slog.DiscardHandler)))
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = store.Close() })
	return store
}
