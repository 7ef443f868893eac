package redistest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"
)

const (
	clusterSlots = 16384
	// nodeTimeout is for how many milliseconds a node is silent before the
	// others call it failed: short for tests that wait for a failover, yet not
	// so short that a busy machine makes healthy nodes fail.
	nodeTimeout = "2000"
	// patientNodeTimeout is the same for a Cluster without replicas, which has
	// no node to promote: its nodes do not fail when the machine stands still for
	// some seconds. It is set after the start, which it would make longer.
	patientNodeTimeout = "10000"
	nodeTimeoutArg     = "--cluster-node-timeout"
)

// ClusterSet is a Redis Cluster.
type ClusterSet struct {
	// Shards holds each shard's nodes, the first master first. Shard i has the
	// i-th of as many equal ranges of slots until a test migrates some. Replicas
	// stay with their shard.
	Shards [][]*Server

	consoles map[*Server]*redis.Client // for migrations, which take many commands
}

// Cluster starts a Cluster, with cluster-require-full-coverage at its default
// and the given number of replicas for each master, and returns once every node
// finds it healthy and every replica is in sync. It takes over two seconds: for
// as long a node that has just started refuses to be called healthy. Without
// replicas the nodes then allow one another 10 s of silence, unless opts set
// cluster-node-timeout, as a test does that wants a node to fail.
func Cluster(tb testing.TB, masters, replicasPerMaster int, opts ...Option) *ClusterSet {
	tb.Helper()
	cfg := newConfig(tb.TempDir(), opts)
	if prog, err := findProgram(); err == nil && prog.major < 7 {
		tb.Fatalf("redistest: Cluster needs Redis 7 (cluster-port, sharded pub/sub), %s is version %d", prog.path, prog.major)
	}
	cfg.cluster = true
	patient := replicasPerMaster == 0 && !slices.Contains(cfg.args, nodeTimeoutArg)
	cfg = cfg.with(
		nodeTimeoutArg, nodeTimeout,
		"--cluster-announce-ip", "127.0.0.1",
		"--cluster-allow-replica-migration", "no",
	)
	nodes := startAll(tb, slices.Repeat([]config{cfg}, masters*(1+replicasPerMaster))...)
	set := &ClusterSet{
		Shards:   slices.Collect(slices.Chunk(nodes, 1+replicasPerMaster)),
		consoles: make(map[*Server]*redis.Client, len(nodes)),
	}
	for _, s := range nodes {
		set.consoles[s] = s.Client(tb, func(o *redis.Options) { o.PoolSize = 1 })
	}
	set.join(tb)
	for i, shard := range set.Shards {
		set.assign(tb, i, shard[0])
	}
	for _, shard := range set.Shards {
		shard[0].adopt(tb, shard[1:])
	}
	for _, s := range nodes {
		Eventually(tb, topologyTimeout, func(ctx context.Context) error { return s.healthy(ctx, masters, masters*replicasPerMaster) })
	}
	if patient {
		for _, s := range nodes {
			s.must(tb, func(ctx context.Context, rdb *redis.Client) error {
				return rdb.ConfigSet(ctx, strings.TrimPrefix(nodeTimeoutArg, "--"), patientNodeTimeout).Err()
			})
		}
	}
	return set
}

// join makes every node meet every other: gossip would get there from one
// introduction each, but takes its time.
func (c *ClusterSet) join(tb testing.TB) {
	tb.Helper()
	nodes := c.Nodes()
	for i, s := range nodes {
		s.must(tb, func(ctx context.Context, rdb *redis.Client) error {
			// Masters with equal epochs would spend seconds on telling them apart.
			return errors.Join(rdb.Do(ctx, "cluster", "set-config-epoch", i+1).Err(), s.meet(ctx, rdb, nodes[:i]))
		})
	}
	for _, s := range nodes {
		Eventually(tb, topologyTimeout, func(ctx context.Context) error { return s.knows(ctx, nodes) })
	}
}

// meet introduces nodes to s.
func (s *Server) meet(ctx context.Context, rdb *redis.Client, nodes []*Server) error {
	var errs []error
	for _, other := range nodes {
		if other != s {
			errs = append(errs, rdb.Do(ctx, "cluster", "meet", "127.0.0.1", other.port, other.bus).Err())
		}
	}
	return errors.Join(errs...)
}

// knows is nil once s knows all nodes. A node forgets another that does not answer its
// introduction in time, as on a machine that stands still, and does not try again.
func (s *Server) knows(ctx context.Context, nodes []*Server) error {
	return s.admin(ctx, func(rdb *redis.Client) error {
		known, err := rdb.ClusterNodes(ctx).Result()
		if err != nil {
			return err
		}
		if strings.Count(known, "\n") < len(nodes) {
			err = s.meet(ctx, rdb, nodes)
		}
		if strings.Count(known, "\n") != len(nodes) || strings.Contains(known, "handshake") {
			err = errors.Join(err, fmt.Errorf("%s knows only:\n%s", s.Addr(), known))
		}
		return err
	})
}

// assign gives the i-th range of slots to s.
func (c *ClusterSet) assign(tb testing.TB, i int, s *Server) {
	tb.Helper()
	n := len(c.Shards)
	s.must(tb, func(ctx context.Context, rdb *redis.Client) error {
		return rdb.ClusterAddSlotsRange(ctx, i*clusterSlots/n, (i+1)*clusterSlots/n-1).Err()
	})
}

// adopt makes the other nodes replicas of s, as soon as they know it.
func (s *Server) adopt(tb testing.TB, replicas []*Server) {
	tb.Helper()
	var id string
	s.must(tb, func(ctx context.Context, rdb *redis.Client) (err error) {
		id, err = rdb.ClusterMyID(ctx).Result()
		return err
	})
	for _, r := range replicas {
		Eventually(tb, topologyTimeout, func(ctx context.Context) error {
			return r.admin(ctx, func(rdb *redis.Client) error { return rdb.ClusterReplicate(ctx, id).Err() })
		})
	}
	for _, r := range replicas {
		Eventually(tb, topologyTimeout, func(ctx context.Context) error { return r.hasReplicated(ctx, 0) })
	}
}

// healthy is nil once s calls the Cluster's state ok and knows all nodes in
// their roles.
func (s *Server) healthy(ctx context.Context, masters, replicas int) error {
	return s.admin(ctx, func(rdb *redis.Client) error {
		info, err := rdb.ClusterInfo(ctx).Result()
		if err != nil {
			return err
		}
		nodes, err := rdb.ClusterNodes(ctx).Result()
		if err != nil {
			return err
		}
		state := infoField(info, "cluster_state")
		// A node that is still being met counts as a master without an address.
		if state != "ok" || strings.Contains(nodes, "handshake") ||
			strings.Count(nodes, "master") != masters || strings.Count(nodes, "slave") != replicas {
			return fmt.Errorf("%s: cluster_state %s, nodes:\n%s", s.Addr(), state, nodes)
		}
		return nil
	})
}

// Nodes returns all nodes.
func (c *ClusterSet) Nodes() []*Server { return slices.Concat(c.Shards...) }

// Addrs returns all nodes' addresses.
func (c *ClusterSet) Addrs() []string { return addrs(c.Nodes()) }

// Client returns a Cluster client, closed by the test's cleanup. Each function
// may change its options.
func (c *ClusterSet) Client(tb testing.TB, change ...func(*redis.ClusterOptions)) *redis.ClusterClient {
	tb.Helper()
	o := &redis.ClusterOptions{Addrs: c.Addrs()}
	for _, f := range change {
		f(o)
	}
	rdb := redis.NewClusterClient(o)
	closeAfter(tb, rdb)
	return rdb
}

// Shard returns the index of the shard that Cluster gave a key's slot to,
// also if slots were migrated since.
func (c *ClusterSet) Shard(tb testing.TB, key string) int {
	tb.Helper()
	slot := Slot(key)
	last := func(i int) int { return (i+1)*clusterSlots/len(c.Shards) - 1 }
	for i := range c.Shards {
		if slot <= last(i) {
			return i
		}
	}
	panic("unreachable: the ranges cover all slots")
}

// AwaitFailover waits until another node of old's shard is its master and all
// nodes that answer call the Cluster healthy again, and returns the new master.
// It takes three to four seconds from the moment old was killed or paused.
func (c *ClusterSet) AwaitFailover(tb testing.TB, old *Server) *Server {
	tb.Helper()
	i := slices.IndexFunc(c.Shards, func(shard []*Server) bool { return slices.Contains(shard, old) })
	if i < 0 {
		tb.Fatalf("redistest: %s is not of this Cluster", old.Addr())
	}
	candidates := slices.DeleteFunc(slices.Clone(c.Shards[i]), func(s *Server) bool { return s == old })
	var promoted *Server
	Eventually(tb, topologyTimeout, func(ctx context.Context) error { return firstMaster(ctx, candidates, &promoted) })
	for _, s := range c.Nodes() {
		if s == old || s.current().dead() {
			continue
		}
		Eventually(tb, topologyTimeout, func(ctx context.Context) error { return s.sees(ctx, promoted) })
	}
	return promoted
}

// sees is nil once s calls the Cluster healthy and names promoted a master.
func (s *Server) sees(ctx context.Context, promoted *Server) error {
	return s.admin(ctx, func(rdb *redis.Client) error {
		info, err := rdb.ClusterInfo(ctx).Result()
		if err != nil {
			return err
		}
		shards, err := rdb.ClusterShards(ctx).Result()
		if err != nil {
			return err
		}
		named := slices.ContainsFunc(shards, func(shard redis.ClusterShard) bool {
			return slices.ContainsFunc(shard.Nodes, func(n redis.Node) bool {
				return n.Role == "master" && int(n.Port) == promoted.port
			})
		})
		if state := infoField(info, "cluster_state"); state != "ok" || !named {
			return fmt.Errorf("%s: cluster_state %s, %s is master: %t", s.Addr(), state, promoted.Addr(), named)
		}
		return nil
	})
}
