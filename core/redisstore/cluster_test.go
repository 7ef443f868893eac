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
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/driver"
	"github.com/interlock-go/interlock/core/idempotency/record"
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

// listened waits until so many lockers listen to calls, at least, on some nodes.
func (c *cluster) listened(lockers int64) {
	c.t.Helper()
	c.soon(fmt.Sprintf("%d lockers listen", lockers), func(ctx context.Context) bool {
		var n atomic.Int64
		err := c.all.ForEachMaster(ctx, func(ctx context.Context, node *redis.Client) error {
			channels, err := node.PubSubChannels(ctx, c.prefix+":wanted:*").Result()
			n.Add(int64(len(channels)))
			return err
		})
		return err == nil && n.Load() == lockers
	})
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
		c.listened(1)
		c.each(func(ctx context.Context, node *redis.Client) error {
			return node.ClientKillByFilter(ctx, "TYPE", "pubsub").Err()
		})
		c.listened(1)
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
		// received the messages of the other.
		single := c.locker(one)
		for i, pair := range [][2]*core.Locker{{single, b}, {b, single}} {
			lease := c.lock(pair[0], own[0])
			heard := later(func() error { return pass(t.Context(), pair[1], own[0]) })
			c.listened(int64(i) + 1)
			c.release(lease)
			c.want("a waiter with a client of the other kind", heard)
		}
	})

	// All channels of a server share a connection. When the slot of one moves, the others
	// keep it, or each slot of a busy server that moves would silence all.
	t.Run("a slot that moves", func(t *testing.T) {
		c := c.in(t)
		var ids []string // of records on one shard; the first moves
		for i := 0; len(ids) < 2; i++ {
			if id := fmt.Sprint("record", i); c.set.Shard(t, c.record(id)) == 1 {
				ids = append(ids, id)
			}
		}
		from, to := c.set.Shards[1][0], c.set.Shards[2][0]
		told := map[string]chan struct{}{}
		for _, id := range ids {
			for _, by := range []string{"first", "a duplicate that waits"} {
				if _, err := s.Claim(t.Context(), c.claim(id, by)); err != nil {
					t.Fatal(err)
				}
			}
			told[id] = make(chan struct{}, 10)
			t.Cleanup(s.Await(id, time.Now(), func() { told[id] <- struct{}{} }))
			await(c.world, told[id]) // the subscription is confirmed
		}
		admin := from.Client(t)
		listeners := func() (ids []string) {
			list, err := admin.Do(t.Context(), "client", "list", "type", "pubsub").Text()
			wantErr(t, err, nil)
			for line := range strings.Lines(list) {
				id, _, _ := strings.Cut(line, " ")
				ids = append(ids, id)
			}
			slices.Sort(ids)
			return ids
		}
		before := listeners()
		c.set.Settle(t)
		m := c.set.Migrate(t, redistest.Slot(c.record(ids[0])), from, to)
		m.MoveAll(t)
		m.Finish(t)
		await(c.world, told[ids[0]]) // its subscription is another
		channel := c.record(ids[0]) + ":done"
		c.soon("the new node has the subscription", func(ctx context.Context) bool {
			return to.Client(t).PubSubShardNumSub(ctx, channel).Val()[channel] == 1
		})
		if after := listeners(); !slices.Equal(after, before) {
			t.Errorf("subscribed connections were %s, and are %s", before, after)
		}
		for _, id := range ids {
			for len(told[id]) > 0 {
				<-told[id]
			}
			wantErr(t, s.Abandon(t.Context(), record.AbandonRequest{ID: id, Token: "first", Deadline: c.deadline()}), nil)
			await(c.world, told[id])
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
			return len(w.rdb.PubSubChannels(ctx, "interlock:wanted:*").Val()) > 0
		})
		w.release(lease)
		w.want("a waiter with a client of the other kind", heard)
	}
}
