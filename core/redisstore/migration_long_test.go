//go:build integration && long

package redisstore_test

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/driver"
	"github.com/interlock-go/interlock/core/idempotency/record"
	"github.com/interlock-go/interlock/internal/redistest"
)

// inOneSlot returns n keys that share a slot.
func inOneSlot(name string, n int) (slot int, keys []string) {
	slot = redistest.Slot(name)
	for i := 0; len(keys) < n; i++ {
		if key := fmt.Sprint(name, "-", i); redistest.Slot(key) == slot {
			keys = append(keys, key)
		}
	}
	return slot, keys
}

// A slot moves key by key, and until it has moved, requests for several keys are refused
// by each master that has only some of them. That may delay requests, but it gives no lock to
// two, takes none away, and leaves no keys.
func TestALockOutlivesEachStateOfASlotMigration(t *testing.T) {
	c := newCluster(t, redistest.Cluster(t, 3, 0))
	s := c.over(c.all)
	lock := func(key string) string { return c.name(key) }
	fence := func(key string) string { return c.name(key) + ":fence" }
	move := func(m *redistest.Migration, name func(string) string, keys []string) {
		for _, key := range keys {
			m.Move(t, name(key))
		}
	}
	for name, halfway := range map[string]func(m *redistest.Migration, keys []string){
		"nothing has moved":        func(*redistest.Migration, []string) {},
		"the locks have moved":     func(m *redistest.Migration, keys []string) { move(m, lock, keys) },
		"the fences have moved":    func(m *redistest.Migration, keys []string) { move(m, fence, keys) },
		"all keys have moved":      func(m *redistest.Migration, _ []string) { m.MoveAll(t) },
		"only the new owner knows": func(m *redistest.Migration, _ []string) { m.MoveAll(t); m.Accept(t) },
	} {
		t.Run(name, func(t *testing.T) {
			c := c.in(t)
			a, b := c.locker(s), c.locker(c.over(c.set.Client(t)))
			slot, keys := inOneSlot(name, 8)
			kept, freed, used, paid, other, fresh := keys[0], keys[1], keys[2], keys[3], keys[4], keys[5]
			places := map[string]driver.Kind{keys[6]: driver.Shared, keys[7]: driver.Permit}
			home := c.set.Shard(t, lock(kept))
			from, to := c.set.Shards[home][0], c.set.Shards[(home+1)%3][0]
			ask := c.held(kept, "a:1")
			first := c.take(s, ask)
			for key, kind := range places {
				c.take(s, driver.AcquireRequest{Key: key, Owner: "a:1", Kind: kind, AtMost: 1, TTL: c.Holds()})
			}
			keeps := func(key string, kind driver.Kind) {
				s.Renew(t.Context(), []driver.Renewal{{Key: key, Owner: "a:1", Kind: kind, TTL: c.Holds()}}, func(_ int, _ bool, err error) { wantErr(t, err, nil) })
			}
			sought := c.lock(a, freed)
			before := c.lock(a, used)
			c.release(before)
			heard := later(func() error { return pass(t.Context(), b, freed) })
			c.listened(1)
			if rep, err := s.Claim(t.Context(), c.claim(paid, "a")); err != nil || rep.State != record.StateGranted {
				t.Fatal(rep, err)
			}

			c.set.Settle(t)
			m := c.set.Migrate(t, slot, from, to)
			halfway(m, keys)

			// Held: no other gets it, its holder keeps it.
			for _, key := range []string{kept, keys[6], keys[7]} {
				if rep, err := s.Acquire(t.Context(), c.held(key, "b:1")); err == nil && rep.Granted || err != nil && !errors.Is(err, driver.ErrNotReady) {
					t.Errorf("an acquire of a held lock: %+v, %v", rep, err)
				}
			}
			wantErr(t, c.renew(s, kept, "a:1"), nil)
			for key, kind := range places {
				keeps(key, kind)
			}
			// Free: it is granted, or the store says that it is not ready; who waits gets it.
			again := later(func() error {
				lease, err := b.Lock(t.Context(), used)
				if err == nil && lease.Token() <= before.Token() {
					err = fmt.Errorf("token %d after %d", lease.Token(), before.Token())
				}
				if err == nil {
					c.release(lease)
				}
				return err
			})
			shared := later(func() error {
				c.share([]*core.Locker{a, b}, []string{fresh, other}, 10, 1)
				return nil
			})
			c.release(sought)
			// A record is one key, and serves on. With a tombstone it is two.
			claim := c.claim(other, "a")
			claim.Tombstone = false
			if rep, err := s.Claim(t.Context(), claim); err != nil || rep.State != record.StateGranted {
				t.Errorf("a claim: %+v, %v", rep, err)
			}
			if rep, err := s.Claim(t.Context(), c.claim(fresh, "a")); err != nil && !errors.Is(err, driver.ErrNotReady) {
				t.Errorf("a claim of a record that may have a tombstone: %+v, %v", rep, err)
			}

			m.Finish(t)
			c.want("a waiter for a lock that was released meanwhile", heard)
			c.want("a waiter for a free lock", again)
			c.want("several that exclude each other", shared)
			for key, kind := range places {
				keeps(key, kind)
				_, err := s.Release(t.Context(), driver.ReleaseRequest{Key: key, Owner: "a:1", Kind: kind, TTL: c.Holds(), Deadline: c.deadline()})
				wantErr(t, err, nil)
			}
			wantErr(t, c.renew(s, kept, "a:1"), nil)
			wantErr(t, c.free(s, kept, "a:1"), nil)
			if next := c.take(s, ask); next.Token <= first.Token {
				t.Errorf("token %d after %d", next.Token, first.Token)
			}
			wantErr(t, c.free(s, kept, "a:1"), nil)
			if rep, err := s.Claim(t.Context(), c.claim(paid, "b")); err != nil || rep.State != record.StateInFlight {
				t.Errorf("a record that has moved: %+v, %v", rep, err)
			}
			c.nothing()
		})
	}
}

// nothing waits until no master has a lock left. Fences may be.
func (c *cluster) nothing() {
	c.t.Helper()
	c.soon("no lock is left", func(ctx context.Context) bool {
		var left atomic.Int64
		err := c.all.ForEachMaster(ctx, func(ctx context.Context, node *redis.Client) error {
			keys, err := node.Keys(ctx, c.prefix+":{*}").Result()
			left.Add(int64(len(keys)))
			return err
		})
		return err == nil && left.Load() == 0
	})
}

func TestReshardingUnderLoadDisturbsNoLock(t *testing.T) {
	c := newCluster(t, redistest.Cluster(t, 3, 0))
	losses := make(chan core.Loss, 1000)
	var lockers []*core.Locker
	for range 3 {
		lockers = append(lockers, c.locker(c.over(c.set.Client(t)), core.Watchdog(15*time.Second), core.OnLost(func(x core.Loss) { losses <- x })))
	}
	var keys []string
	var held []*core.Lease
	slots := make([]map[int]bool, len(c.set.Shards)) // of all keys, by shard
	for i := range slots {
		slots[i] = map[int]bool{}
	}
	for i := range 60 {
		key, alone := fmt.Sprint("key", i), fmt.Sprint("held", i)
		keys, held = append(keys, key), append(held, c.lock(lockers[i%3], alone))
		for _, key := range []string{key, alone} {
			slots[c.set.Shard(t, c.name(key))][redistest.Slot(key)] = true
		}
	}
	var moved atomic.Bool
	load := later(func() error {
		for !moved.Load() {
			c.share(lockers, keys, 20, 1)
		}
		return nil
	})
	for _, back := range []bool{false, true} {
		for home := range slots {
			from, to := c.set.Shards[home][0], c.set.Shards[(home+1)%3][0]
			if back {
				from, to = to, from
			}
			c.set.Settle(t)
			for slot := range slots[home] {
				c.set.Migrate(t, slot, from, to).Finish(t)
			}
		}
	}
	moved.Store(true)
	c.want("the load", load)
	for _, lease := range held {
		c.soon(lease.Key()+" is confirmed", func(ctx context.Context) bool {
			if err := lease.Err(); err != nil {
				t.Fatalf("%s was held all the time: %v", lease.Key(), err)
			}
			return lease.Check(ctx) == nil
		})
		c.release(lease)
	}
	close(losses)
	for x := range losses {
		t.Errorf("lost: %+v", x)
	}
	c.nothing()
}
