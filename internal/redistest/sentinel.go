package redistest

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"testing"

	"github.com/redis/go-redis/v9"
)

// sentinelConf has a failover take seconds instead of minutes, so that a test can wait
// for it. %s is the name, %d the port, %d how long a server may be silent, in ms.
const sentinelConf = `sentinel monitor %[1]s 127.0.0.1 %[2]d 2
sentinel down-after-milliseconds %[1]s %[3]d
sentinel failover-timeout %[1]s 4000
sentinel parallel-syncs %[1]s 1
`

// How long a server may be silent until the sentinels take it for down, in ms. On a busy
// machine a server that works can be silent for a second. Only a test that waits for a
// failover has the sentinels be impatient.
const (
	patient   = 60_000
	impatient = 1_000
)

// sentinels is how many there are; with a quorum of 2 one may be lost.
const sentinels = 3

// SentinelSet is a master with replicas, watched by three sentinels that agree
// by two that it is down.
type SentinelSet struct {
	// Name is the master's name among the sentinels.
	Name string
	// ReplicaSet holds the data servers in their first roles; after a failover
	// AwaitFailover tells the new one.
	ReplicaSet
	// Sentinels are the sentinel processes.
	Sentinels []*Server
}

// Sentinel starts a master, the given number of replicas and three sentinels,
// and returns once all know one another; that takes over two seconds, because
// sentinels announce themselves every two.
func Sentinel(tb testing.TB, replicas int, opts ...Option) *SentinelSet {
	tb.Helper()
	set := &SentinelSet{Name: "interlock", ReplicaSet: *Replicated(tb, replicas, opts...)}
	cfg := newConfig(tb.TempDir(), nil)
	cfg.sentinel = fmt.Sprintf(sentinelConf, set.Name, set.Master.port, patient)
	set.Sentinels = startAll(tb, slices.Repeat([]config{cfg}, sentinels)...)
	for _, s := range set.Sentinels {
		Eventually(tb, topologyTimeout, func(ctx context.Context) error {
			return set.known(ctx, s, replicas)
		})
	}
	return set
}

// known is nil once the sentinel s knows the others and all replicas.
func (t *SentinelSet) known(ctx context.Context, s *Server, replicas int) error {
	state, err := t.ask(ctx, s)
	if err != nil {
		return err
	}
	want := [2]string{fmt.Sprint(sentinels - 1), fmt.Sprint(replicas)}
	if got := [2]string{state["num-other-sentinels"], state["num-slaves"]}; got != want {
		return fmt.Errorf("sentinel %s knows %v sentinels and replicas, want %v", s.Addr(), got, want)
	}
	if flags := state["flags"]; flags != "master" {
		return fmt.Errorf("sentinel %s: master is %q", s.Addr(), flags)
	}
	return nil
}

// ask returns the answer of the sentinel s about the master.
func (t *SentinelSet) ask(ctx context.Context, s *Server) (map[string]string, error) {
	var state map[string]string
	err := s.admin(ctx, func(rdb *redis.Client) error {
		cmd := redis.NewMapStringStringCmd(ctx, "sentinel", "master", t.Name)
		err := rdb.Process(ctx, cmd)
		state = cmd.Val()
		return err
	})
	return state, err
}

// Addrs returns the sentinels' addresses.
func (t *SentinelSet) Addrs() []string { return addrs(t.Sentinels) }

// Client returns a client that follows the master, closed by the test's
// cleanup. Each function may change its options.
func (t *SentinelSet) Client(tb testing.TB, change ...func(*redis.FailoverOptions)) *redis.Client {
	tb.Helper()
	o := &redis.FailoverOptions{MasterName: t.Name, SentinelAddrs: t.Addrs()}
	for _, f := range change {
		f(o)
	}
	rdb := redis.NewFailoverClient(o)
	closeAfter(tb, rdb)
	return rdb
}

// AwaitFailover has the sentinels replace old, which was killed, paused or cut off from
// them, and waits until all that run name the same other master and that one accepts
// writes. It returns that one. It takes about two seconds. Before and after it there is no
// failover: a second one would take away a test's writes to the new master.
func (t *SentinelSet) AwaitFailover(tb testing.TB, old *Server) *Server {
	tb.Helper()
	t.silence(tb, impatient)
	t.awaitMaster(tb, old)
	t.silence(tb, patient)
	// While they were impatient, one may have begun to replace the new master as well.
	return t.awaitMaster(tb, old)
}

// silence sets after how many ms the sentinels take a silent server for down.
func (t *SentinelSet) silence(tb testing.TB, ms int) {
	tb.Helper()
	for _, s := range t.Sentinels {
		if s.current().dead() {
			continue
		}
		Eventually(tb, topologyTimeout, func(ctx context.Context) error {
			return s.admin(ctx, func(rdb *redis.Client) error {
				return rdb.Do(ctx, "sentinel", "set", t.Name, "down-after-milliseconds", ms).Err()
			})
		})
	}
}

// awaitMaster waits until all running sentinels name the same other master than old, none
// is about to replace it, and it accepts writes. Two sentinels can promote two servers; in
// the end the later one is the master.
func (t *SentinelSet) awaitMaster(tb testing.TB, old *Server) *Server {
	tb.Helper()
	var promoted *Server
	Eventually(tb, topologyTimeout, func(ctx context.Context) error {
		promoted = nil
		for _, s := range t.Sentinels {
			if s.current().dead() {
				continue
			}
			state, err := t.ask(ctx, s)
			if err != nil {
				return err
			}
			addr := net.JoinHostPort(state["ip"], state["port"])
			if addr == old.Addr() {
				return fmt.Errorf("sentinel %s still names %s", s.Addr(), addr)
			}
			if flags := state["flags"]; flags != "master" {
				return fmt.Errorf("sentinel %s: %s is %q", s.Addr(), addr, flags)
			}
			i := slices.Index(addrs(t.all()), addr)
			if i < 0 {
				return fmt.Errorf("sentinel %s names a stranger: %s", s.Addr(), addr)
			}
			if other := t.all()[i]; promoted == nil {
				promoted = other
			} else if promoted != other {
				return fmt.Errorf("sentinel %s names %s, another %s", s.Addr(), addr, promoted.Addr())
			}
		}
		if promoted == nil {
			return errors.New("no sentinel runs")
		}
		return promoted.isMaster(ctx)
	})
	return promoted
}

func (r *ReplicaSet) all() []*Server { return append([]*Server{r.Master}, r.Replicas...) }

func addrs(servers []*Server) []string {
	list := make([]string, len(servers))
	for i, s := range servers {
		list[i] = s.Addr()
	}
	return list
}
