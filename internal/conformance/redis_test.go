//go:build integration

package conformance_test

import (
	"fmt"
	"log/slog"
	"sync/atomic"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/redisstore"
	"github.com/interlock-go/interlock/internal/conformance"
	"github.com/interlock-go/interlock/internal/frameworks"
	"github.com/interlock-go/interlock/internal/redistest"
)

func TestMain(m *testing.M) { redistest.Main(m) }

// Memory must not hide what the scripts do.
func TestEveryProtocolBehavesTheSameOnRedis(t *testing.T) {
	conformance.Run(t, frameworks.Protocols, onRedis(t))
}

func TestOneRuleExcludesAcrossProtocolsOnRedis(t *testing.T) {
	conformance.RunAcross(t, frameworks.Protocols, onRedis(t))
}

// onRedis opens servers in Redis: a prefix of their own in the shared one, for rows that
// run beside others, or a process.
func onRedis(t *testing.T) conformance.Open {
	t.Helper()
	shared := redistest.Shared(t).Client(t)
	var rows atomic.Int64
	return func(t *testing.T, own bool) conformance.Server {
		t.Helper()
		s := &redisServer{rdb: shared, prefix: fmt.Sprintf("row%d", rows.Add(1))}
		if own {
			s.own = redistest.Start(t)
			s.rdb = s.own.Client(t)
		}
		return s
	}
}

type redisServer struct {
	own    *redistest.Server
	rdb    *redis.Client
	prefix string
}

func (s *redisServer) Store(tb testing.TB) core.Store {
	tb.Helper()
	return newStore(tb, s.rdb, s.prefix)
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

func (s *redisServer) Held(tb testing.TB, key string) bool {
	tb.Helper()
	n, err := s.rdb.Exists(tb.Context(), s.prefix+":{"+key+"}").Result()
	if err != nil {
		tb.Error(err)
	}
	return n == 1
}

func (s *redisServer) Lose(tb testing.TB, key string) bool {
	tb.Helper()
	n, err := s.rdb.Del(tb.Context(), s.prefix+":{"+key+"}").Result()
	if err != nil {
		tb.Error(err)
	}
	return n == 1
}

func (s *redisServer) CutOff(testing.TB) { s.own.Kill() }
