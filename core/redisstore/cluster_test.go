//go:build integration

package redisstore_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/driver"
	"github.com/interlock-go/interlock/core/observe"
	"github.com/interlock-go/interlock/internal/redistest"
)

// cluster is a world of several masters.
type cluster struct {
	*world // of the first master
	set    *redistest.ClusterSet
	all    *redis.ClusterClient
}

func newCluster(t *testing.T, set *redistest.ClusterSet) *cluster {
	t.Helper()
	return &cluster{worldOf(t, set.Shards[0][0], "interlock"), set, set.Client(t)}
}

// in is the same cluster for a subtest.
func (c *cluster) in(t *testing.T) *cluster {
	w := *c.world
	w.t = t
	return &cluster{&w, c.set, c.all}
}

// each does something on each master.
func (c *cluster) each(do func(ctx context.Context, node *redis.Client) error) {
	c.t.Helper()
	if err := c.all.ForEachMaster(c.t.Context(), do); err != nil {
		c.t.Fatal(err)
	}
}

// listened waits until the release of each key has a listener on some node.
func (c *cluster) listened(keys ...string) {
	c.t.Helper()
	for _, key := range keys {
		channel := c.name(key) + ":free"
		c.soon("a locker listens for "+key, func(ctx context.Context) bool {
			var n atomic.Int64
			err := c.all.ForEachMaster(ctx, func(ctx context.Context, node *redis.Client) error {
				heard, err := node.PubSubShardNumSub(ctx, channel).Result()
				n.Add(heard[channel])
				return err
			})
			return err == nil && n.Load() == 1
		})
	}
}

// onShard returns n keys with locks on a shard.
func (c *cluster) onShard(shard, n int) (keys []string) {
	for i := 0; len(keys) < n; i++ {
		if key := fmt.Sprint("key", i); c.set.Shard(c.t, c.name(key)) == shard {
			keys = append(keys, key)
		}
	}
	return keys
}

func TestCluster(t *testing.T) {
	t.Parallel()
	c := newCluster(t, redistest.Cluster(t, 3, 0))
	s := c.over(c.all)
	a, b := c.locker(s), c.locker(c.over(c.set.Client(t)))
	var keys []string // of all shards
	for shard := range c.set.Shards {
		keys = append(keys, c.onShard(shard, 2)...)
	}

	t.Run("each request, with scripts that are flushed before it", func(t *testing.T) {
		c := c.in(t)
		for i := range 4 { // in other slots each time
			c.live(c.life(s, c.all, fmt.Sprint("k", i)), func(st step) error {
				c.each(func(ctx context.Context, node *redis.Client) error { return node.ScriptFlush(ctx).Err() })
				return st.do()
			})
		}
	})

	t.Run("hostile keys", func(t *testing.T) { c.in(t).takeHostileKeys(s) })

	t.Run("several keys on several shards", func(t *testing.T) {
		c := c.in(t)
		lease, err := a.LockAll(c.bounded(), keys)
		if err != nil {
			t.Fatal(err)
		}
		for _, key := range keys {
			if rep := c.acquire(s, c.held(key, "b:1")); rep.Granted {
				t.Errorf("%s is granted to another", key)
			}
		}
		c.release(lease)
	})

	t.Run("waiters are told of releases, also after a reconnect", func(t *testing.T) {
		c := c.in(t)
		var held []*core.Lease
		var heard []<-chan error
		for _, key := range keys {
			held = append(held, c.lock(a, key))
			heard = append(heard, later(func() error { return pass(t.Context(), b, key) }))
		}
		c.listened(keys...)
		c.each(func(ctx context.Context, node *redis.Client) error {
			return node.ClientKillByFilter(ctx, "TYPE", "pubsub").Err()
		})
		c.listened(keys...)
		for i, lease := range held {
			c.release(lease)
			c.want("the waiter for "+keys[i], heard[i])
		}
	})

	t.Run("a client for one server", func(t *testing.T) {
		c := c.in(t)
		one := c.store()
		// Locks of different slots of one server cannot be in one call there.
		var all []<-chan error
		own := c.onShard(0, 20)
		for _, key := range own {
			all = append(all, later(func() error {
				rep, err := one.Acquire(t.Context(), c.held(key, "a:1"))
				if err == nil && !rep.Granted {
					err = errors.New("it is held by " + rep.Holder)
				}
				return err
			}))
		}
		var batch []driver.Renewal
		for i, key := range own {
			c.want(key, all[i])
			batch = append(batch, driver.Renewal{Key: key, Owner: "a:1", TTL: c.Holds()})
		}
		c.hold(one, batch)
		_, err := one.Acquire(t.Context(), c.held(c.onShard(1, 1)[0], "a:1"))
		if !errors.Is(err, core.ErrUnavailable) || !strings.Contains(observe.RootCause(err).Error(), "ClusterClient") {
			t.Errorf("a key of another node: %v", err)
		}
		// It announced releases by PUBLISH and a client for a Cluster by SPUBLISH: neither
		// heard the other.
		single := c.locker(one)
		for _, pair := range [][2]*core.Locker{{single, b}, {b, single}} {
			lease := c.lock(pair[0], own[0])
			heard := later(func() error { return pass(t.Context(), pair[1], own[0]) })
			c.listened(own[0])
			c.release(lease)
			c.want("a waiter with a client of the other kind", heard)
		}
	})

	// All channels of a server share a connection. When the slot of one moves, the others
	// keep it, or each slot of a busy server that moves would silence all.
	t.Run("a slot that moves", func(t *testing.T) {
		c := c.in(t)
		keys := c.onShard(1, 2) // the first moves
		from, to := c.set.Shards[1][0], c.set.Shards[2][0]
		var heard []<-chan error
		for _, key := range keys {
			first := c.take(s, c.held(key, "a:1"))
			heard = append(heard, later(func() error {
				lease, err := b.Lock(t.Context(), key)
				if err != nil {
					return err
				}
				if lease.Token() <= first.Token {
					err = fmt.Errorf("token %d after %d", lease.Token(), first.Token)
				}
				return errors.Join(err, lease.Release(t.Context()))
			}))
		}
		c.listened(keys...)
		admin := from.Client(t)
		listeners := func() (ids []string) {
			list, err := admin.Do(t.Context(), "client", "list", "type", "pubsub").Text()
			wantErr(t, err, nil)
			for line := range strings.Lines(list) {
				id, _, _ := strings.Cut(line, " ")
				ids = append(ids, id)
			}
			return ids
		}
		before := listeners()
		c.set.Settle(t)
		m := c.set.Migrate(t, redistest.Slot(c.name(keys[0])), from, to)
		m.MoveAll(t)
		wantErr(t, c.renew(s, keys[0], "a:1"), nil) // by ASK
		m.Finish(t)
		wantErr(t, c.renew(s, keys[0], "a:1"), nil) // by MOVED
		c.listened(keys...)
		if after := listeners(); !slices.Equal(after, before) {
			t.Errorf("subscribed connections were %s, and are %s", before, after)
		}
		for i, key := range keys {
			wantErr(t, c.free(s, key, "a:1"), nil)
			c.want("the waiter for "+key, heard[i])
		}
	})
}

// A client as NewFailoverClusterClient makes it. That function leaks goroutines.
func TestAClusterClientOfAServerThatIsNoNodeGetsReleases(t *testing.T) {
	t.Parallel()
	set := redistest.Replicated(t, 1)
	w := worldOf(t, set.Master, "interlock")
	random := redis.NewClusterClient(&redis.ClusterOptions{
		RouteRandomly: true, ReadOnly: true,
		ClusterSlots: func(context.Context) ([]redis.ClusterSlot, error) {
			nodes := []redis.ClusterNode{{Addr: set.Master.Addr()}, {Addr: set.Replicas[0].Addr()}}
			return []redis.ClusterSlot{{Start: 0, End: 16383, Nodes: nodes}}, nil
		},
	})
	t.Cleanup(func() { _ = random.Close() })
	a, b := w.process(), w.locker(w.over(random))
	for _, pair := range [][2]*core.Locker{{a, b}, {b, a}} {
		lease := w.lock(pair[0], "k")
		heard := later(func() error { return pass(t.Context(), pair[1], "k") })
		w.soon("a locker listens", func(ctx context.Context) bool {
			channel := w.name("k") + ":free"
			return w.rdb.PubSubNumSub(ctx, channel).Val()[channel]+w.rdb.PubSubShardNumSub(ctx, channel).Val()[channel] > 0
		})
		w.release(lease)
		w.want("a waiter with a client of the other kind", heard)
	}
}
