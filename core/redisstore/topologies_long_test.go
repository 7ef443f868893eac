//go:build integration && long

package redisstore_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/driver"
	"github.com/interlock-go/interlock/core/driver/drivertest"
	"github.com/interlock-go/interlock/core/idempotency/record"
	"github.com/interlock-go/interlock/core/idempotency/record/recordtest"
	"github.com/interlock-go/interlock/core/redisstore"
	"github.com/interlock-go/interlock/internal/redistest"
)

func TestTheStoreKeepsItsContractOnACluster(t *testing.T) {
	t.Parallel()
	c := newCluster(t, redistest.Cluster(t, 3, 0))
	drivertest.Run(t, func(t *testing.T) driver.Store {
		return withoutOffers{c.in(t).over(c.all)}
	})
	recordtest.Run(t, func(t *testing.T) record.Store { return c.in(t).over(c.all) })
}

// withoutOffers is a store on a Cluster, which reaches no locker with an offer.
type withoutOffers struct{ *redisstore.Store }

// Serves implements [driver.Limited].
func (withoutOffers) Serves(h driver.Hold) error {
	if h.Offered {
		return driver.ErrConfig
	}
	return nil
}

func TestAFailoverOfACluster(t *testing.T) {
	t.Parallel()
	c := newCluster(t, redistest.Cluster(t, 3, 1))
	a, b := c.locker(c.over(c.all)), c.locker(c.over(c.set.Client(t)))
	keys := append(c.onShard(0, 2), c.onShard(1, 2)...)
	c.share([]*core.Locker{a, b}, keys, 25, 1)
	old := c.set.Shards[0][0]
	old.Kill()
	c.set.AwaitFailover(t, old)
	promoted := time.Now()
	c.soon("a lock is taken again", func(ctx context.Context) bool { return pass(ctx, a, keys[0]) == nil })
	t.Logf("taken again %v after the promotion", time.Since(promoted))
	c.share([]*core.Locker{a, b}, keys, 25, 1)
}

// A client asks one sentinel until that fails. go-redis tries a sentinel that hangs several
// times, for its ReadTimeout each: a failover was noticed after four of them.
func TestAFailoverIsNoticedWhileASentinelHangs(t *testing.T) {
	t.Parallel()
	const readTimeout = 10 * time.Second
	f := newWatched(t, 3)
	s := f.store(func(o *redis.FailoverOptions) { o.ReadTimeout = readTimeout })
	f.take(s, f.held("before", "a:1"))
	f.soon("the client listens to a sentinel", func(context.Context) bool {
		for _, sentinel := range f.sentinels {
			if sentinel.asked.Load() {
				sentinel.hangs.Store(true)
				return true
			}
		}
		return false
	})
	f.promote()
	f.master.Store(f.set.Replicas[0])
	begin := time.Now()
	f.left()
	if took := time.Since(begin); took > 3*readTimeout {
		t.Errorf("the failover was noticed after %v, want 2s and once the ReadTimeout of %v", took, readTimeout)
	}
	wantErr(t, f.renew(s, "before", "a:1"), nil)
}

func TestTheDocumentedRightsAreEnoughOnEachTopology(t *testing.T) {
	t.Parallel()
	users := func(t *testing.T, servers []*redistest.Server, rows ...string) (all []*world) {
		for _, srv := range servers {
			w := worldOf(t, srv, "interlock")
			w.user(append(rows, "core/idempotency", "shared locks")...)
			all = append(all, w)
		}
		return all
	}
	for name, run := range map[string]func(t *testing.T) []*world{
		"replicas that acknowledge": func(t *testing.T) []*world {
			set := redistest.Replicated(t, 1)
			all := users(t, []*redistest.Server{set.Master}, "Replicas")
			w := all[0]
			s := w.over(w.Client(t, restricted), redisstore.Replicas(1, w.Patience()), redisstore.ReplicatedRenewals())
			w.live(w.life(s, w.rdb, "k"), nil)
			return all
		},
		"Sentinel": func(t *testing.T) []*world {
			set := redistest.Sentinel(t, 1)
			all := users(t, []*redistest.Server{set.Master, set.Replicas[0]})
			s := all[0].over(set.Client(t, func(o *redis.FailoverOptions) { o.Username, o.Password = "interlock", "password" }))
			all[0].live(all[0].life(s, all[0].rdb, "k"), nil)
			return all
		},
		// On a Cluster that moves slots go-redis asks for the new owner's leave (ASKING),
		// and looks up where commands have their keys (COMMAND).
		"Cluster": func(t *testing.T) []*world {
			set := redistest.Cluster(t, 2, 0)
			all := users(t, set.Nodes(), "Cluster")
			w := all[0]
			s := w.over(set.Client(t, func(o *redis.ClusterOptions) { o.Username, o.Password = "interlock", "password" }))
			w.live(w.life(s, set.Client(t), "k"), nil)
			key := "k"
			w.take(s, w.held(key, "a:1"))
			from := set.Shard(t, w.name(key))
			m := set.Migrate(t, redistest.Slot(key), set.Shards[from][0], set.Shards[1-from][0])
			m.MoveAll(t)
			wantErr(t, w.renew(s, key, "a:1"), nil)
			m.Finish(t)
			wantErr(t, w.free(s, key, "a:1"), nil)
			w.live(w.life(s, set.Client(t), "moved"), nil)
			return all
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var denied []string
			for _, w := range run(t) {
				denied = append(denied, w.Denials(w.t)...)
			}
			if len(denied) != 0 {
				t.Errorf("refused by a server:\n%s", strings.Join(denied, "\n"))
			}
		})
	}
}
