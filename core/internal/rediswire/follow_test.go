//go:build integration

package rediswire

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/interlock-go/interlock/core/driver"
	"github.com/interlock-go/interlock/internal/redistest"
)

// clusterOf is the same for NewFailoverClusterClient.
func clusterOf(tb testing.TB, now *atomic.Pointer[redistest.Server]) *redis.ClusterClient {
	tb.Helper()
	rdb := redis.NewClusterClient(&redis.ClusterOptions{
		ClusterSlots: func(context.Context) ([]redis.ClusterSlot, error) {
			return []redis.ClusterSlot{{Start: 0, End: 16383, Nodes: []redis.ClusterNode{{Addr: now.Load().Addr()}}}}, nil
		},
	})
	tb.Cleanup(func() { _ = rdb.Close() })
	return rdb
}

// connected fails unless a server has from least to most connections, not counting its
// own.
func connected(ctx context.Context, rdb *redis.Client, least, most int) error {
	list, err := rdb.ClientList(ctx).Result()
	if err != nil {
		return err
	}
	if n := strings.Count(list, "\n") - 1; n < least || n > most {
		return fmt.Errorf("%d connections, want %d to %d:\n%s", n, least, most, list)
	}
	return nil
}

// hold takes a lock and keeps a subscription and the connections for renewals open.
func hold(t *testing.T, s *Store, key string) {
	t.Helper()
	if err := acquireWithin(t.Context(), s, key, 30*time.Second); err != nil {
		t.Fatal(err)
	}
	s.Renew(t.Context(), []driver.Renewal{{Key: key, Owner: key + ":1", TTL: 30 * time.Second}}, func(_ int, _ bool, err error) {
		if err != nil {
			t.Error(err)
		}
	})
	stop := s.Calls("w1", func(driver.Call) {})
	t.Cleanup(stop)
}

// A former master that the sentinels cannot reach goes on answering. go-redis closes
// the connections of the user's client; the store's own stayed, and took locks there
// that others had on the new master.
func TestAStoreFollowsAFailoverWhoseOldMasterStillAnswers(t *testing.T) {
	t.Parallel()
	for name, client := range map[string]func(testing.TB, *atomic.Pointer[redistest.Server]) redis.UniversalClient{
		"FailoverClient": func(tb testing.TB, now *atomic.Pointer[redistest.Server]) redis.UniversalClient {
			return failoverOf(tb, now)
		},
		"FailoverClusterClient": func(tb testing.TB, now *atomic.Pointer[redistest.Server]) redis.UniversalClient {
			return clusterOf(tb, now)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			before, after := redistest.Start(t), redistest.Start(t)
			var now atomic.Pointer[redistest.Server]
			now.Store(before)
			s := newStore(t, client(t, &now))
			hold(t, s, "held")
			old := before.Client(t, func(o *redis.Options) { o.PoolSize = 1 })
			redistest.Eventually(t, time.Minute, func(ctx context.Context) error {
				return connected(ctx, old, 3, 20) // for requests, renewals and messages
			})
			now.Store(after)
			redistest.Eventually(t, time.Minute, func(ctx context.Context) error { return connected(ctx, old, 0, 0) })
			for i := range 20 {
				key := fmt.Sprint("key", i)
				if err := acquireWithin(t.Context(), s, key, 30*time.Second); err != nil {
					t.Error(err)
				}
				if n := old.Exists(t.Context(), s.names.lock(key)).Val(); n != 0 {
					t.Errorf("%s was taken on the former master", key)
				}
				if n := after.Client(t).Exists(t.Context(), s.names.lock(key)).Val(); n != 1 {
					t.Errorf("%s was not taken on the new master", key)
				}
			}
			channel := s.names.wanted("w1")
			redistest.Eventually(t, time.Minute, func(ctx context.Context) error {
				rdb := after.Client(t)
				n, m := rdb.PubSubNumSub(ctx, channel).Val()[channel], rdb.PubSubShardNumSub(ctx, channel).Val()[channel]
				if n+m != 1 {
					return errors.New("the store does not listen to the new master")
				}
				return nil
			})
			if err := connected(t.Context(), old, 0, 0); err != nil {
				t.Errorf("the former master again has %v", err)
			}
		})
	}
}

// After a failover the address of a hosted service leads to another server. There the former
// master itself says that it is no master any more.
func TestAnswersOfAFormerMasterMakeTheStoreConnectAnew(t *testing.T) {
	t.Parallel()
	for name, demote := range map[string][]any{
		"NOREPLICAS": {"config", "set", "min-replicas-to-write", "1"},
		"READONLY":   {"replicaof", "127.0.0.1", "1"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			before, after := redistest.Start(t), redistest.Start(t)
			var now atomic.Pointer[redistest.Server]
			now.Store(before)
			rdb := after.Client(t, func(o *redis.Options) {
				o.Addr = "redis.example:6379"
				o.Dialer = func(ctx context.Context, network, _ string) (net.Conn, error) {
					return (&net.Dialer{}).DialContext(ctx, network, now.Load().Addr())
				}
			})
			s := newStore(t, rdb)
			hold(t, s, "held")
			// Else the next request may go by a connection that is made for it, and leads
			// to the new master.
			redistest.Eventually(t, time.Minute, func(context.Context) error { return resting(s) })
			old := before.Client(t, func(o *redis.Options) { o.PoolSize = 1 })
			if err := old.Do(t.Context(), demote...).Err(); err != nil {
				t.Fatal(err)
			}
			now.Store(after)
			redistest.Eventually(t, time.Minute, func(ctx context.Context) error { return acquireWithin(ctx, s, "k", time.Second) })
			redistest.Eventually(t, time.Minute, func(ctx context.Context) error { return connected(ctx, old, 0, 0) })
		})
	}
}

// resting reports an error while a pipeline for requests is under way.
func resting(s *Store) error {
	for _, q := range s.requests.all() {
		q.mu.Lock()
		busy := q.busy
		q.mu.Unlock()
		if busy > 0 {
			return fmt.Errorf("%d pipelines are under way", busy)
		}
	}
	return nil
}

func TestAMasterWithoutReplicasIsNotConnectedToAnewAllTheTime(t *testing.T) {
	t.Parallel()
	srv := redistest.Start(t, redistest.Args("--min-replicas-to-write", "1"))
	s := newStore(t, srv.Client(t))
	begin := time.Now()
	for i := range 100 {
		if err := acquireWithin(t.Context(), s, fmt.Sprint("key", i), 30*time.Second); !errors.Is(err, driver.ErrNotReady) {
			t.Fatal(err)
		}
	}
	stats, err := srv.Client(t).InfoMap(t.Context(), "stats").Result()
	if err != nil {
		t.Fatal(err)
	}
	var n int
	_, _ = fmt.Sscan(stats["Stats"]["total_connections_received"], &n)
	if most := 20 + 2*(maxPipelines+poolSize)*int(1+time.Since(begin)/severEvery); n > most {
		t.Errorf("%d connections were made in %v", n, time.Since(begin))
	}
}
