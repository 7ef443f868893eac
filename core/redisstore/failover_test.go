package redisstore_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/observe"
	"github.com/interlock-go/interlock/internal/redistest"
)

// failover is a topology that replaces its master.
type failover struct {
	rdb             redis.UniversalClient
	master, replica *redistest.Server
	keys            []string // whose master that is
	await           func()   // for the promotion, after the master was killed
}

var failovers = map[string]func(t *testing.T) failover{
	"Sentinel": func(t *testing.T) failover {
		set := redistest.Sentinel(t, 1)
		return failover{
			set.Client(t), set.Master, set.Replicas[0], someKeys(4), func() { set.AwaitFailover(t, set.Master) },
		}
	},
	"Cluster": func(t *testing.T) failover {
		set := redistest.Cluster(t, 3, 1)
		var keys []string
		for i := 0; len(keys) < 4; i++ {
			if key := fmt.Sprint("key", i); set.Shard(t, key) == 0 {
				keys = append(keys, key)
			}
		}
		old := set.Shards[0][0]
		return failover{set.Client(t), old, set.Shards[0][1], keys, func() { set.AwaitFailover(t, old) }}
	},
}

// A replica that never heard of a lock is what an asynchronous failover can
// promote. Here it is made to forget.
func TestALockThatAFailoverLostIsReportedAtTheNextRenewal(t *testing.T) {
	t.Parallel()
	const lease = 24 * time.Second
	for name, start := range failovers {
		t.Run(name, func(t *testing.T) {
			f := start(t)
			losses := make(chan core.Loss, 10)
			a := newLocker(t, f.rdb, core.Watchdog(lease), core.OnLost(func(x core.Loss) { losses <- x }), core.Unlisted())
			b := newLocker(t, f.rdb, core.Watchdog(lease), core.Unlisted())
			lost, taken := lock(t, a, f.keys[0]), lock(t, a, f.keys[1])
			replica := f.replica.Client(t)
			awaitKeys := func(n int64) {
				t.Helper()
				redistest.Eventually(t, 10*time.Second, func(ctx context.Context) error {
					got, err := replica.DBSize(ctx).Result()
					if err == nil && got != n {
						err = fmt.Errorf("the replica has %d keys", got)
					}
					return err
				})
			}
			awaitKeys(4) // two locks with their fences
			for _, cmd := range [][]any{
				{"config", "set", "replica-read-only", "no"}, {"flushall"}, {"config", "set", "replica-read-only", "yes"},
			} {
				if err := replica.Do(t.Context(), cmd...).Err(); err != nil {
					t.Fatal(cmd, err)
				}
			}
			kept := lock(t, a, f.keys[2])
			awaitKeys(2)

			f.master.Kill()
			f.await()
			promoted := time.Now()
			took := again(t, b, f.keys[3], 30*time.Second)
			next := lock(t, b, f.keys[1])
			for range 2 {
				select {
				case x := <-losses:
					t.Logf("%s: reported %v after the promotion", x.Reason, time.Since(promoted).Round(time.Millisecond))
					if x.Token != lost.Token() && x.Token != taken.Token() ||
						x.Reason != observe.LossDeleted && x.Reason != observe.LossTakenOver {
						t.Errorf("OnLost got %v", x)
					}
				case <-time.After(lease):
					t.Fatal("the loss was not reported")
				}
			}
			wantErr(t, lost.Err(), core.ErrLost)
			wantErr(t, context.Cause(taken.Context()), core.ErrLost)
			wantErr(t, lost.Release(t.Context()), core.ErrLost)
			wantErr(t, taken.Release(t.Context()), core.ErrLost)
			if next.Token() <= taken.Token() {
				t.Errorf("token %d after %d", next.Token(), taken.Token())
			}
			if err := kept.Check(t.Context()); err != nil {
				t.Errorf("a lock that the replica had: %v", err)
			}
			release(t, kept)
			release(t, next)
			t.Logf("a lock was taken %v after the promotion", took)
			if took > 15*time.Second {
				t.Errorf("a lock was taken %v after the promotion only", took)
			}
		})
	}
}
