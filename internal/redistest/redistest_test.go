package redistest_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/interlock-go/interlock/internal/redistest"
)

func TestMain(m *testing.M) { redistest.Main(m) }

// gone fails the test unless nothing listens at the address any more.
func gone(tb testing.TB, addrs ...string) {
	tb.Helper()
	for _, addr := range addrs {
		if conn, err := net.DialTimeout("tcp", addr, time.Second); err == nil {
			conn.Close()
			tb.Errorf("a server still listens at %s", addr)
		}
	}
}

func set(tb testing.TB, rdb redis.Cmdable, key, value string) {
	tb.Helper()
	if err := rdb.Set(tb.Context(), key, value, 0).Err(); err != nil {
		tb.Fatalf("SET %s: %v", key, err)
	}
}

// want fails the test unless the key has the value; "" means no key.
func want(tb testing.TB, rdb redis.Cmdable, key, value string) {
	tb.Helper()
	got, err := rdb.Get(tb.Context(), key).Result()
	if err != nil && !errors.Is(err, redis.Nil) {
		tb.Fatalf("GET %s: %v", key, err)
	}
	if got != value {
		tb.Fatalf("GET %s: %q, want %q", key, got, value)
	}
}

func TestServerAnswersAndIsGoneAfterTheTest(t *testing.T) {
	var addr, dir string
	t.Run("inner", func(t *testing.T) {
		s := redistest.Start(t, redistest.Args("--maxmemory", "10mb"))
		addr, dir = s.Addr(), s.Dir()
		rdb := s.Client(t)
		set(t, rdb, "k", "v")
		want(t, rdb, "k", "v")
		if got := rdb.ConfigGet(t.Context(), "maxmemory").Val()["maxmemory"]; got != "10485760" {
			t.Errorf("maxmemory is %q: Args did not reach the server", got)
		}
		if err := rdb.Do(t.Context(), "debug", "sleep", "0").Err(); err != nil {
			t.Errorf("DEBUG is not enabled: %v", err)
		}
	})
	gone(t, addr)
	if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("%s is still there: %v", dir, err)
	}
}

func TestKilledServerComesBackEmptyAtItsAddress(t *testing.T) {
	s := redistest.Start(t)
	rdb := s.Client(t)
	set(t, rdb, "k", "v")
	addr, pid := s.Addr(), s.PID()
	s.Kill()
	s.Kill() // twice does no harm
	gone(t, addr)
	s.Restart(t)
	if s.Addr() != addr || s.PID() == pid {
		t.Fatalf("restarted as %s, process %d; it was %s, process %d", s.Addr(), s.PID(), addr, pid)
	}
	want(t, rdb, "k", "")
}

func TestPersistenceSurvivesARestart(t *testing.T) {
	s := redistest.Start(t, redistest.Args("--appendonly", "yes", "--appendfsync", "always"))
	rdb := s.Client(t)
	set(t, rdb, "k", "v")
	s.Restart(t)
	want(t, rdb, "k", "v")
}

func TestStopEndsTheServer(t *testing.T) {
	s := redistest.Start(t)
	s.Stop(t)
	gone(t, s.Addr())
}

func TestPausedServerIsSilentUntilResumed(t *testing.T) {
	s := redistest.Start(t)
	rdb := s.Client(t, func(o *redis.Options) {
		o.ReadTimeout = 50 * time.Millisecond
		o.MaxRetries = -1
	})
	set(t, s.Client(t), "k", "v") // with more patience
	s.Pause(t)
	if err := rdb.Get(t.Context(), "k").Err(); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatalf("GET from a paused server: %v, want a timeout", err)
	}
	s.Resume(t)
	redistest.Eventually(t, 5*time.Second, func(ctx context.Context) error { return rdb.Get(ctx, "k").Err() })
}

func TestPausedServerIsKilledByCleanup(t *testing.T) {
	var addr string
	t.Run("inner", func(t *testing.T) {
		s := redistest.Start(t)
		addr = s.Addr()
		s.Pause(t)
	})
	gone(t, addr)
}

func TestCallsCountCommandsOfClientsAndScripts(t *testing.T) {
	s := redistest.Start(t)
	rdb := s.Client(t)
	set(t, rdb, "k", "v")
	s.ResetStats(t)
	for range 3 {
		if err := rdb.Eval(t.Context(), "return redis.call('GET', KEYS[1])", []string{"k"}).Err(); err != nil {
			t.Fatal(err)
		}
	}
	calls := s.Calls(t)
	if calls["eval"] != 3 || calls["get"] != 3 || calls["set"] != 0 {
		t.Errorf("calls: %v, want 3 eval, 3 get and no set", calls)
	}
	if n := s.Stat(t, "total_commands_processed"); n < 6 {
		t.Errorf("total_commands_processed is %d, want 6 or more", n)
	}
}

func TestSharedServerIsOneAndComesEmpty(t *testing.T) {
	s := redistest.Shared(t)
	rdb := s.Client(t)
	set(t, rdb, "k", "v")
	again := redistest.Shared(t)
	if again.PID() != s.PID() {
		t.Errorf("two shared servers, processes %d and %d", s.PID(), again.PID())
	}
	want(t, rdb, "k", "")
}

func TestIndependentServersDoNotShareData(t *testing.T) {
	servers := redistest.Independent(t, 3)
	for i, s := range servers {
		set(t, s.Client(t), "k", fmt.Sprint(i))
	}
	for i, s := range servers {
		want(t, s.Client(t), "k", fmt.Sprint(i))
	}
}

func TestReplicasFollowTheMaster(t *testing.T) {
	set2 := redistest.Replicated(t, 2)
	set(t, set2.Master.Client(t), "k", "v")
	set2.AwaitSync(t)
	for _, r := range set2.Replicas {
		want(t, r.Client(t), "k", "v")
	}
}

func TestSentinelPromotesAReplica(t *testing.T) {
	var addrs []string
	t.Run("inner", func(t *testing.T) {
		s := redistest.Sentinel(t, 1)
		addrs = append(s.Addrs(), s.Master.Addr(), s.Replicas[0].Addr())
		rdb := s.Client(t)
		set(t, rdb, "k", "v")
		s.AwaitSync(t)
		s.Master.Kill()
		promoted := s.AwaitFailover(t, s.Master)
		if promoted != s.Replicas[0] {
			t.Fatalf("%s was promoted, want the replica %s", promoted.Addr(), s.Replicas[0].Addr())
		}
		redistest.Eventually(t, 10*time.Second, func(ctx context.Context) error { return rdb.Set(ctx, "k", "w", 0).Err() })
		want(t, promoted.Client(t), "k", "w")
	})
	gone(t, addrs...)
}

func TestClusterPromotesAReplica(t *testing.T) {
	var addrs []string
	t.Run("inner", func(t *testing.T) {
		c := redistest.Cluster(t, 3, 1)
		addrs = c.Addrs()
		rdb := c.Client(t)
		for i := range 50 {
			set(t, rdb, fmt.Sprint("key-", i), "v")
		}
		old := c.Master(t, "k")
		if old != c.Shards[c.Shard(t, "k")][0] {
			t.Fatalf("%s is master before any failover", old.Addr())
		}
		old.Kill()
		promoted := c.AwaitFailover(t, old)
		if promoted == old || c.Master(t, "k") != promoted {
			t.Fatalf("%s promoted after %s, and %s is master", promoted.Addr(), old.Addr(), c.Master(t, "k").Addr())
		}
		fresh := c.Client(t) // the first one stays on the dead master for a while
		set(t, fresh, "k", "v")
		want(t, promoted.Client(t), "k", "v")
	})
	gone(t, addrs...)
}

func TestClusterOfMastersOnly(t *testing.T) {
	c := redistest.Cluster(t, 3, 0)
	rdb := c.Client(t)
	for i := range 50 {
		set(t, rdb, fmt.Sprint("key-", i), "v")
	}
	for i, shard := range c.Shards {
		if n := shard[0].Client(t).DBSize(t.Context()).Val(); n == 0 {
			t.Errorf("shard %d has no key", i)
		}
	}
}

func ExampleExampleClient() {
	rdb := redistest.ExampleClient()
	fmt.Println(rdb.DBSize(context.Background()).Val())
	// Output: 0
}

func TestSlotIsTheOneThatTheServerComputes(t *testing.T) {
	rdb := redistest.Cluster(t, 1, 0).Client(t)
	for _, key := range []string{"", "k", "foo{bar}baz", "foo{}{bar}", "foo{{bar}}", "{a", "ö\x00\xff", "interlock:{account/42}:fence"} {
		want, err := rdb.ClusterKeySlot(t.Context(), key).Result()
		if err != nil {
			t.Fatal(err)
		}
		if got := redistest.Slot(key); int64(got) != want {
			t.Errorf("%q: slot %d, the server says %d", key, got, want)
		}
	}
}
