//go:build integration

package conformance_test

import (
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/idempotency"
	"github.com/interlock-go/interlock/core/redisstore"
	"github.com/interlock-go/interlock/internal/frameworks"
	"github.com/interlock-go/interlock/internal/idemcases"
	"github.com/interlock-go/interlock/internal/pace"
	"github.com/interlock-go/interlock/internal/redistest"
)

func TestIdempotentOnRedis(t *testing.T) {
	idemcases.RunOn(t, frameworks.Protocols, func(t *testing.T, server idemcases.Server) idemcases.Records {
		if server == idemcases.Shared { // which is emptied
			return newRedis(t, redistest.Shared(t))
		}
		return newRedis(t, redistest.Start(t))
	})
}

// redisRecords are records in Redis, over a wire that can lose replies.
type redisRecords struct {
	idemcases.Wire
	srv    *redistest.Server
	rdb    *redis.Client
	pace   pace.Pace
	killed bool
	stores map[string]*redisstore.Store
}

func newRedis(t *testing.T, srv *redistest.Server) *redisRecords {
	t.Helper()
	r := connectRedis(t, srv.Addr())
	r.srv = srv
	return r
}

// connectRedis returns the records at an address, also of another process.
func connectRedis(t *testing.T, addr string) *redisRecords {
	t.Helper()
	r := &redisRecords{}
	r.rdb = redis.NewClient(&redis.Options{Addr: addr, Dialer: r.Dial})
	t.Cleanup(func() { _ = r.rdb.Close() })
	r.pace = pace.Of(t, func() error { return r.rdb.Ping(t.Context()).Err() })
	return r
}

func (r *redisRecords) store(tb testing.TB, service string) *redisstore.Store {
	tb.Helper()
	if r.stores == nil {
		r.stores = make(map[string]*redisstore.Store)
	}
	if r.stores[service] == nil {
		r.stores[service] = newStore(tb, r.rdb, service)
	}
	return r.stores[service]
}

func (r *redisRecords) Store(tb testing.TB, service string) idempotency.Store {
	tb.Helper()
	return r.store(tb, service)
}

// Locks returns the store of the records: the commit then goes with the release.
func (r *redisRecords) Locks(tb testing.TB) core.Store {
	tb.Helper()
	return r.store(tb, "interlock")
}

func (r *redisRecords) LoseLock(tb testing.TB, key string) bool {
	tb.Helper()
	n, err := r.rdb.Del(tb.Context(), "interlock:{"+key+"}").Result()
	if err != nil {
		tb.Error(err)
	}
	return n == 1
}

// names returns the names of records, "*" the names of all services.
func (r *redisRecords) names(tb testing.TB, service string) []string {
	tb.Helper()
	names, err := r.rdb.Keys(tb.Context(), service+":idem:*").Result()
	if err != nil {
		tb.Error(err)
	}
	return names
}

func (r *redisRecords) Count(tb testing.TB, service string) int {
	tb.Helper()
	return len(r.names(tb, service))
}

func (r *redisRecords) Dump(tb testing.TB) string {
	tb.Helper()
	all := r.rdb.Keys(tb.Context(), "*").Val()
	for _, name := range r.names(tb, "*") {
		fields, err := r.rdb.HGetAll(tb.Context(), name).Result()
		if err != nil {
			tb.Error(err)
		}
		for _, value := range fields {
			all = append(all, value)
		}
	}
	return strings.Join(all, "\n")
}

// Waiting counts the channels: a duplicate waits that has subscribed.
func (r *redisRecords) Waiting(tb testing.TB) int {
	tb.Helper()
	names, err := r.rdb.PubSubChannels(tb.Context(), "*").Result()
	if err != nil {
		tb.Error(err)
	}
	return len(names)
}

func (r *redisRecords) Empty(tb testing.TB) {
	tb.Helper()
	if err := r.rdb.FlushDB(tb.Context()).Err(); err != nil {
		tb.Error(err)
	}
}

// Lapse sets the ends of the leases back.
func (r *redisRecords) Lapse(tb testing.TB) {
	tb.Helper()
	if r.killed {
		return
	}
	for _, name := range r.names(tb, "*") {
		if err := r.rdb.HSet(tb.Context(), name, "u", 0).Err(); err != nil {
			tb.Error(err)
		}
	}
}

func (r *redisRecords) Damage(tb testing.TB) {
	tb.Helper()
	names := r.names(tb, "*")
	if len(names) != 1 || r.rdb.Set(tb.Context(), names[0], "x", 0).Err() != nil {
		tb.Fatalf("records %q", names)
	}
}

// Forget flushes the scripts.
func (r *redisRecords) Forget(tb testing.TB) {
	tb.Helper()
	if err := r.rdb.ScriptFlush(tb.Context()).Err(); err != nil {
		tb.Error(err)
	}
}

func (r *redisRecords) Kill(testing.TB) { r.srv.Kill(); r.killed = true }

func (r *redisRecords) Restart(tb testing.TB) { tb.Helper(); r.srv.Restart(tb); r.killed = false }

func (r *redisRecords) LoseClaim() { r.LoseReply("granted") }

func (r *redisRecords) LoseCommit() { r.LoseReply("stored") }

func (r *redisRecords) Pace() pace.Pace { return r.pace }

// Measure counts the scripts, none of which may be sent as a source, and how often the
// server has read: a pipeline is read at once.
func (r *redisRecords) Measure(tb testing.TB, run func()) idemcases.Cost {
	tb.Helper()
	reads := func() int64 { return r.srv.Stat(tb, "total_reads_processed") }
	r.srv.ResetStats(tb)
	base := reads()
	overhead := reads() - base
	base = reads()
	run()
	trips := reads() - base - overhead
	calls := r.srv.Calls(tb)
	if n := calls["eval"]; n != 0 {
		tb.Errorf("%d scripts with a source", n)
	}
	return idemcases.Cost{Trips: trips, Requests: calls["evalsha"]}
}

// Costs are in docs/idempotency-operation.md. Under a lock they include the costs of the lock,
// which goes with the records: claim, lock, and commit with release.
func (r *redisRecords) Costs() idemcases.Costs {
	return idemcases.Costs{
		Fresh:    idemcases.Cost{Trips: 2, Requests: 2},
		Marked:   idemcases.Cost{Trips: 3, Requests: 3},
		Locked:   idemcases.Cost{Trips: 3, Requests: 4},
		Replay:   idemcases.Cost{Trips: 1, Requests: 1},
		Conflict: idemcases.Cost{Trips: 1, Requests: 1},
	}
}
