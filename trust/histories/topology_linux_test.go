//go:build long

package histories

import (
	"context"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/interlock-go/interlock/internal/redistest"
	"github.com/interlock-go/interlock/trust/internal/faultclock"
)

// The topologies.
const (
	single       = "single"
	acknowledged = "replicated, acknowledged"
	replicated   = "replicated"
	sentinel     = "Sentinel"
	cluster      = "Cluster"
	quorumOfFive = "quorum of 5"
)

// topology is a way to keep locks.
type topology struct {
	name string
	// exclusive topologies promise that holds which are trusted never overlap;
	// the others replicate asynchronously.
	exclusive bool
	// start starts the servers and returns what to do to them, by name. Each
	// fault has ended when it returns.
	start func(t *testing.T) (servers, []fault)
}

// fault is something done to the servers.
type fault struct {
	name string
	do   func(ctx context.Context, rng *rand.Rand)
}

var topologies = []topology{
	{single, true, startSingle},
	{acknowledged, true, startReplicated(acknowledged)},
	{replicated, false, startReplicated(replicated)},
	{sentinel, false, startSentinel},
	{cluster, false, startCluster},
	{quorumOfFive, true, startQuorum},
}

// behind is the lag of the clock of one node of the quorum.
const behind = 5 * time.Minute

// durable is a server that keeps acknowledged writes.
var durable = redistest.Args("--appendonly", "yes", "--appendfsync", "always")

func startSingle(t *testing.T) (servers, []fault) {
	s := redistest.Start(t, durable)
	return servers{Kind: single, Addrs: []string{s.Addr()}}, []fault{
		{"server paused", func(ctx context.Context, rng *rand.Rand) { pauseServer(ctx, t, s, rng) }},
		{"server killed", func(ctx context.Context, rng *rand.Rand) {
			s.Kill()
			pause(ctx, part(rng, 0, lease/2))
			s.Restart(t)
		}},
	}
}

// pauseServer suspends a server for up to one and a half leases.
func pauseServer(ctx context.Context, t *testing.T, s *redistest.Server, rng *rand.Rand) {
	s.Pause(t)
	pause(ctx, part(rng, lease/10, 3*lease/2))
	s.Resume(t)
}

// startReplicated fails over by hand: the file with the master's address replaces the service
// that clients ask in such an installation.
func startReplicated(kind string) func(t *testing.T) (servers, []fault) {
	return func(t *testing.T) (servers, []fault) {
		set := redistest.Replicated(t, 1)
		file := filepath.Join(t.TempDir(), "master")
		publish := func() {
			t.Helper()
			if err := os.WriteFile(file+".new", []byte(set.Master.Addr()), 0o600); err != nil {
				t.Fatal(err)
			}
			if err := os.Rename(file+".new", file); err != nil {
				t.Fatal(err)
			}
		}
		publish()
		// failover promotes the replica of a master that does not answer, and makes
		// that one its replica once it is back.
		failover := func(back func(old *redistest.Server)) {
			old := set.Master
			set.Master, set.Replicas = set.Replicas[0], []*redistest.Server{old}
			tell(t, set.Master, "replicaof", "no", "one")
			publish()
			back(old)
			tell(t, old, "replicaof", "127.0.0.1", port(set.Master))
			set.AwaitSync(t)
		}
		return servers{Kind: kind, Master: file}, []fault{
			{"failover, master killed", func(ctx context.Context, rng *rand.Rand) {
				set.Master.Kill()
				pause(ctx, part(rng, 0, lease/2))
				failover(func(old *redistest.Server) { old.Restart(t) })
			}},
			{"failover, master paused", func(ctx context.Context, rng *rand.Rand) {
				set.Master.Pause(t)
				pause(ctx, part(rng, 0, lease/2))
				failover(func(old *redistest.Server) {
					pause(ctx, part(rng, 0, lease))
					old.Resume(t)
					// Until a sentinel tells it, it is a master for clients that
					// do not know the other.
					pause(ctx, part(rng, 0, lease/2))
				})
			}},
			{"replica paused", func(ctx context.Context, rng *rand.Rand) { pauseServer(ctx, t, set.Replicas[0], rng) }},
		}
	}
}

func port(s *redistest.Server) string {
	_, p, _ := strings.Cut(s.Addr(), ":")
	return p
}

// tell sends one command to a server.
func tell(t *testing.T, s *redistest.Server, args ...any) {
	t.Helper()
	rdb := redis.NewClient(&redis.Options{Addr: s.Addr()})
	defer func() { _ = rdb.Close() }() // one connection
	if err := rdb.Do(t.Context(), args...).Err(); err != nil {
		t.Fatalf("%s: %v: %v", s.Addr(), args, err)
	}
}

func startSentinel(t *testing.T) (servers, []fault) {
	set := redistest.Sentinel(t, 2)
	master := set.Master
	return servers{Kind: sentinel, Addrs: set.Addrs()}, failovers(t,
		func() *redistest.Server { return master },
		func(old *redistest.Server) { master = set.AwaitFailover(t, old) })
}

func startCluster(t *testing.T) (servers, []fault) {
	set := redistest.Cluster(t, 3, 1)
	masters := make([]*redistest.Server, len(set.Shards))
	for i, shard := range set.Shards {
		masters[i] = shard[0]
	}
	shard := 0
	return servers{Kind: cluster, Addrs: set.Addrs()}, failovers(t,
		func() *redistest.Server {
			shard = (shard + 1) % len(masters) // the last one's replica may not be back yet
			return masters[shard]
		},
		func(old *redistest.Server) { masters[shard] = set.AwaitFailover(t, old) })
}

// failovers has a master fail and waits until the others have noticed.
func failovers(t *testing.T, master func() *redistest.Server, await func(old *redistest.Server)) []fault {
	return []fault{
		{"failover, master killed", func(ctx context.Context, rng *rand.Rand) {
			old := master()
			old.Kill()
			await(old)
			pause(ctx, part(rng, 0, lease/2))
			old.Restart(t)
		}},
		{"failover, master paused", func(ctx context.Context, rng *rand.Rand) {
			old := master()
			old.Pause(t)
			await(old)
			pause(ctx, part(rng, 0, lease/2))
			old.Resume(t) // until it learns about the failover, it serves clients that do not know it
		}},
	}
}

// startQuorum never has more than two nodes down at a time; a node that was killed
// comes back empty, and has no vote for a lease and the looks before and after it. The
// clock of one node is slow by minutes all the time.
func startQuorum(t *testing.T) (servers, []fault) {
	nodes := make([]*faultclock.Server, 5)
	addrs := make([]string, len(nodes))
	for i := range nodes {
		nodes[i] = faultclock.Start(t)
		addrs[i] = nodes[i].Addr()
	}
	slow := nodes[0]
	slow.Step(t, -behind)
	two := func(rng *rand.Rand) (a, b *faultclock.Server) {
		order := rng.Perm(len(nodes))
		return nodes[order[0]], nodes[order[1]]
	}
	// reboot starts a node that was killed. Its clock is slow, and is set right before it
	// has its vote again.
	reboot := func(ctx context.Context, s *faultclock.Server, rng *rand.Rand) {
		usual := time.Duration(0)
		if s == slow {
			usual = -behind
		}
		s.Step(t, usual-time.Minute)
		s.Restart(t)
		pause(ctx, part(rng, 0, lease/2))
		s.Step(t, usual)
	}
	var restarted time.Time
	recovered := func(ctx context.Context) { pause(ctx, time.Until(restarted.Add(2*lease))) }
	return servers{Kind: quorumOfFive, Addrs: addrs}, []fault{
		{"two nodes paused", func(ctx context.Context, rng *rand.Rand) {
			a, b := two(rng)
			recovered(ctx)
			a.Pause(t)
			pauseServer(ctx, t, b.Server, rng)
			a.Resume(t)
		}},
		{"two nodes asleep for leases", func(ctx context.Context, rng *rand.Rand) {
			a, b := two(rng)
			recovered(ctx)
			a.Pause(t)
			pause(ctx, part(rng, 0, lease))
			b.Pause(t)
			pause(ctx, part(rng, 3*lease/2, 3*lease))
			a.Resume(t)
			pause(ctx, part(rng, 0, lease))
			b.Resume(t)
		}},
		{"node rebooted, its clock set right later", func(ctx context.Context, rng *rand.Rand) {
			a, b := two(rng)
			recovered(ctx)
			b.Pause(t)
			a.Kill()
			reboot(ctx, a, rng)
			b.Resume(t)
			restarted = time.Now()
		}},
		{"node killed, another paused", func(ctx context.Context, rng *rand.Rand) {
			a, b := two(rng)
			recovered(ctx)
			a.Kill()
			pauseServer(ctx, t, b.Server, rng)
			a.Restart(t)
			restarted = time.Now()
		}},
	}
}
