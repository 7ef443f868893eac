package redisstore_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/internal/redistest"
)

// share has several processes' goroutines take a few keys in turn, and checks
// that they exclude each other and that the tokens of each key grow.
func share(t *testing.T, lockers []*core.Locker, keys []string, each int) {
	t.Helper()
	var mu sync.Mutex
	inside := map[string]int{}
	last := map[string]int64{}
	var wg sync.WaitGroup
	for _, l := range lockers {
		for g := range 8 {
			wg.Go(func() {
				for i := range each {
					key := keys[(g+i)%len(keys)]
					lease, err := l.Lock(t.Context(), key)
					if err != nil {
						t.Error(err)
						return
					}
					mu.Lock()
					if inside[key]++; inside[key] != 1 {
						t.Errorf("two inside %s", key)
					}
					if lease.Token() <= last[key] {
						t.Errorf("%s: token %d after %d", key, lease.Token(), last[key])
					}
					last[key] = lease.Token()
					inside[key]--
					mu.Unlock()
					if err := lease.Release(t.Context()); err != nil {
						t.Error(err)
					}
				}
			})
		}
	}
	wg.Wait()
}

func someKeys(n int) (keys []string) {
	for i := range n {
		keys = append(keys, fmt.Sprint("key", i))
	}
	return keys
}

// again takes a lock as soon as that works, and says how long it took.
func again(t *testing.T, l *core.Locker, key string, within time.Duration) time.Duration {
	t.Helper()
	begin := time.Now()
	redistest.Eventually(t, within, func(ctx context.Context) error {
		lease, err := l.Lock(ctx, key, core.Wait(time.Second))
		if err != nil {
			return err
		}
		return lease.Release(ctx)
	})
	return time.Since(begin)
}

func TestCluster(t *testing.T) {
	t.Parallel()
	set := redistest.Cluster(t, 3, 1)
	rdb := set.Client(t)
	lockers := []*core.Locker{newLocker(t, rdb), newLocker(t, rdb, core.Watchdog(9*time.Second)), newLocker(t, rdb)}
	share(t, lockers, someKeys(6), 100)

	t.Run("AWaiterHearsOfAReleaseOnItsShard", func(t *testing.T) {
		for _, key := range someKeys(6) {
			lease := lock(t, lockers[0], key)
			got := make(chan error, 1)
			go func() {
				l, err := lockers[1].Lock(t.Context(), key)
				if err == nil {
					err = l.Release(t.Context())
				}
				got <- err
			}()
			channel := "interlock:{" + key + "}:free"
			redistest.Eventually(t, 30*time.Second, func(ctx context.Context) error {
				node, err := rdb.MasterForKey(ctx, channel)
				if err != nil {
					return err
				}
				n, err := node.PubSubShardNumSub(ctx, channel).Result()
				if err != nil || n[channel] == 0 {
					return errors.Join(errors.New("nobody listens"), err)
				}
				return nil
			})
			begin := time.Now()
			release(t, lease)
			if err := <-got; err != nil {
				t.Error(err)
			}
			if d := time.Since(begin); d > 10*time.Second { // by asking alone it takes the 30 s of the lease
				t.Errorf("it heard of it after %v", d)
			}
		}
	})

	t.Run("SeveralKeysOnSeveralShards", func(t *testing.T) {
		keys := someKeys(6)
		lease, err := lockers[0].LockAll(t.Context(), keys)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := tryLock(t, lockers[1], keys[3]); !errors.Is(err, core.ErrHeld) {
			t.Errorf("TryLock: %v", err)
		}
		release(t, lease)
	})

	t.Run("AfterAPromotionALockCanBeTakenAgain", func(t *testing.T) {
		old := set.Master(t, "interlock:{key0}")
		old.Kill()
		set.AwaitFailover(t, old)
		took := again(t, lockers[1], "key0", 30*time.Second)
		t.Logf("taken again %v after the promotion", took)
		if took > 15*time.Second {
			t.Errorf("it took %v after the promotion", took)
		}
		share(t, lockers, someKeys(6), 20)
	})
}

func TestSentinel(t *testing.T) {
	t.Parallel()
	set := redistest.Sentinel(t, 1)
	rdb := set.Client(t)
	lockers := []*core.Locker{newLocker(t, rdb), newLocker(t, rdb, core.Watchdog(6*time.Second))}
	share(t, lockers, someKeys(3), 100)

	lease := lock(t, lockers[1], "held")
	old := set.Master
	old.Kill()
	set.AwaitFailover(t, old)
	took := again(t, lockers[0], "k", 30*time.Second)
	t.Logf("taken again %v after the promotion", took)
	if took > 15*time.Second {
		t.Errorf("it took %v after the promotion", took)
	}
	// The held lock was replicated or not; its holder must know which.
	if err := confirm(t, lease); err == nil {
		release(t, lease)
	} else if !errors.Is(err, core.ErrLost) {
		t.Errorf("Check after the failover: %v", err)
	}
	share(t, lockers, someKeys(3), 50)
}

func TestALocksExpiryIsItsLease(t *testing.T) {
	srv := redistest.Shared(t)
	rdb := srv.Client(t)
	l := newLocker(t, rdb)
	for _, c := range []struct {
		key  string
		opts []core.Option
		want time.Duration
	}{
		{"default", nil, 30 * time.Second},
		{"watchdog", []core.Option{core.Watchdog(7 * time.Second)}, 7 * time.Second},
		{"fixed", []core.Option{core.TTL(11 * time.Second)}, 11 * time.Second},
	} {
		begin := time.Now()
		lease := lock(t, l, c.key, c.opts...)
		left := rdb.PTTL(t.Context(), "interlock:{"+c.key+"}").Val()
		if least := c.want - time.Since(begin) - 2*time.Second; left > c.want || left < least {
			t.Errorf("%s: %v are left in Redis, want %v", c.key, left, c.want)
		}
		fields := rdb.HGetAll(t.Context(), "interlock:{"+c.key+"}").Val()
		if len(fields) != 1 {
			t.Errorf("%s: the hash is %v, want the owner alone", c.key, fields)
		}
		fence := rdb.PTTL(t.Context(), "interlock:{"+c.key+"}:fence").Val()
		if fence > c.want+time.Minute || fence < c.want+50*time.Second {
			t.Errorf("%s: the fence stays %v, want the lease and a minute", c.key, fence)
		}
		release(t, lease)
	}
}

func TestAnExhaustedPoolOfTheApplicationDoesNotTouchTheLock(t *testing.T) {
	srv := redistest.Shared(t)
	rdb := srv.Client(t, func(o *redis.Options) { o.PoolSize = 1 })
	l := newLocker(t, rdb, core.Watchdog(6*time.Second))
	lease := lock(t, l, "k")
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() { rdb.BLPop(ctx, time.Minute, "nothing") })
	}
	awaitRenewal(t, []*core.Lease{lease})
	if err := lease.Err(); err != nil {
		t.Error(err)
	}
	release(t, lease)
	release(t, lock(t, l, "other"))
	cancel()
	if _, err := srv.Client(t).RPush(t.Context(), "nothing", 1, 2, 3, 4).Result(); err != nil {
		t.Error(err)
	}
	wg.Wait()
}
