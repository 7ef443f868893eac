//go:build long && linux

package consensus_test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	natsd "github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/interlock-go/interlock/core/casstore"
	"github.com/interlock-go/interlock/natsstore"
)

// The test binary is a member of NATS, if its environment says which.
const natsEnv = "INTERLOCK_TEST_NATS_MEMBER"

// natsBucket has the locks, and natsControl the locks of the control.
const (
	natsBucket  = "locks"
	natsControl = "control"
)

// serveNATS runs a member until a signal: its name, directory, port for clients, port for members, how many batches it
// takes at once, and the routes to the members.
func serveNATS(of []string) error {
	port := func(text string) int {
		n, _ := strconv.Atoi(text)
		return n
	}
	opts := &natsd.Options{
		ServerName: of[0], StoreDir: of[1], Host: "127.0.0.1", Port: port(of[2]), JetStream: true, NoSigs: true, LogFile: of[1] + ".log",
		Cluster:         natsd.ClusterOpts{Name: "locks", Host: "127.0.0.1", Port: port(of[3])},
		Routes:          natsd.RoutesFromStr(of[5]),
		JetStreamLimits: natsd.JSLimitOpts{MaxBatchInflightPerStream: port(of[4])}, // zero: 50
	}
	server, err := natsd.NewServer(opts)
	if err != nil {
		return err
	}
	server.ConfigureLogger()
	server.Start()
	ended := make(chan os.Signal, 1)
	signal.Notify(ended, syscall.SIGTERM)
	<-ended
	server.Shutdown()
	return nil
}

// natsCluster is three members.
type natsCluster struct {
	t        *testing.T
	members  []*natsMember
	observer jetstream.JetStream
}

// natsMember is a member, a process.
type natsMember struct {
	t          *testing.T
	name, addr string
	args       string
	cmd        *exec.Cmd
	ended      <-chan struct{}
}

// newNATS starts members with a bucket, which end with the test. They take so many batches at once; zero: the default.
func newNATS(t *testing.T, inflight int) *natsCluster {
	t.Helper()
	c := &natsCluster{t: t}
	ports := freePorts(t, 6)
	var routes []string
	for i := range 3 {
		routes = append(routes, fmt.Sprint("nats://127.0.0.1:", ports[2*i+1]))
	}
	for i := range 3 {
		name := fmt.Sprint("m", i)
		c.members = append(c.members, &natsMember{t: t, name: name, addr: fmt.Sprint("127.0.0.1:", ports[2*i]), args: strings.Join([]string{
			name, filepath.Join(t.TempDir(), name), fmt.Sprint(ports[2*i]), fmt.Sprint(ports[2*i+1]), fmt.Sprint(inflight), strings.Join(routes, ","),
		}, " ")})
	}
	for _, m := range c.members {
		m.start()
	}
	t.Cleanup(func() {
		for _, m := range c.members {
			m.kill()
		}
	})
	eventually(t, "the members answer", func() bool {
		js, err := dialNATS(c.addrs())
		if err == nil {
			c.observer = js
			t.Cleanup(js.Conn().Close)
		}
		return err == nil
	})
	for _, bucket := range []string{natsBucket, natsControl} {
		eventually(t, "there is a bucket", func() bool {
			ctx, cancel := timeout(t, 5*time.Second)
			defer cancel()
			return natsstore.Create(ctx, c.observer, bucket, 3) == nil
		})
	}
	c.leading()
	return c
}

// dialNATS connects as docs/consensus.md says.
func dialNATS(addrs []string) (jetstream.JetStream, error) {
	nc, err := nats.Connect("nats://"+strings.Join(addrs, ",nats://"), nats.MaxReconnects(-1), nats.PingInterval(time.Second),
		nats.ReconnectWait(100*time.Millisecond), nats.Timeout(time.Second), nats.IgnoreDiscoveredServers())
	if err != nil {
		return nil, err
	}
	return jetstream.New(nc)
}

func (m *natsMember) start() {
	m.t.Helper()
	m.cmd = exec.Command(os.Args[0])
	m.cmd.Env = append(os.Environ(), natsEnv+"="+m.args)
	m.cmd.Stderr = os.Stderr
	var err error
	if m.ended, err = launch(m.cmd); err != nil {
		m.t.Fatal(err)
	}
}

func (m *natsMember) signal(s syscall.Signal) {
	m.t.Helper()
	if err := m.cmd.Process.Signal(s); err != nil {
		m.t.Error(err)
	}
}

func (m *natsMember) kill() {
	_ = m.cmd.Process.Kill()
	<-m.ended
}

func (c *natsCluster) addrs() []string {
	var addrs []string
	for _, m := range c.members {
		addrs = append(addrs, m.addr)
	}
	return addrs
}

// js makes a connection that ends with the test.
func (c *natsCluster) js() jetstream.JetStream {
	c.t.Helper()
	js, err := dialNATS(c.addrs())
	if err != nil {
		c.t.Fatal(err)
	}
	c.t.Cleanup(js.Conn().Close)
	return js
}

// leads returns the leader of the bucket, or nil; sure says that all members follow it.
func (c *natsCluster) leads(limit time.Duration, sure bool) *natsMember {
	ctx, cancel := timeout(c.t, limit)
	defer cancel()
	stream, err := c.observer.Stream(ctx, "KV_"+natsBucket)
	if err != nil || stream.CachedInfo().Cluster == nil {
		return nil
	}
	of := stream.CachedInfo().Cluster
	for _, r := range of.Replicas {
		if sure && (r.Offline || !r.Current) {
			return nil
		}
	}
	for _, m := range c.members {
		if m.name == of.Leader {
			return m
		}
	}
	return nil
}

func (c *natsCluster) led() bool { return c.leads(100*time.Millisecond, false) != nil }

func (c *natsCluster) leader() (leader *natsMember) {
	c.t.Helper()
	eventually(c.t, "all members follow a leader of the bucket", func() bool {
		leader = c.leads(2*time.Second, true)
		return leader != nil
	})
	return leader
}

func (c *natsCluster) leading() server { return c.leader() }

// follower returns a member that does not lead.
func (c *natsCluster) follower() *natsMember {
	c.t.Helper()
	leader := c.leader()
	for _, m := range c.members {
		if m != leader {
			return m
		}
	}
	return nil
}

// stepDown moves the leader of the bucket.
func (c *natsCluster) stepDown() {
	c.t.Helper()
	before := c.leader()
	eventually(c.t, "the leader moves", func() bool {
		_, err := c.observer.Conn().Request("$JS.API.STREAM.LEADER.STEPDOWN.KV_"+natsBucket, nil, 5*time.Second)
		return err == nil && c.leader() != before
	})
}

// openNATS makes a store that is closed at the end of the test.
func openNATS(t *testing.T, js jetstream.JetStream, opts ...casstore.Option) *natsstore.Store {
	t.Helper()
	store, err := natsstore.New(js, natsBucket, opts...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := store.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
	})
	return store
}

// onNATS makes a connection for a lock.
func onNATS(lock func(jetstream.JetStream, time.Duration) (taker, error)) func([]string, time.Duration) (taker, error) {
	return func(addrs []string, lease time.Duration) (taker, error) {
		js, err := dialNATS(addrs)
		if err != nil {
			return nil, err
		}
		return lock(js, lease)
	}
}

func natsLocked(js jetstream.JetStream, lease time.Duration) (taker, error) {
	store, err := natsstore.New(js, natsBucket)
	if err != nil {
		return nil, err
	}
	return byLocker(store, lease)
}

// natsValue is the control: a value of the bucket that NATS deletes after the lease, written anew while the lock is held.
// Its holder has it until a renewal is refused.
func natsValue(js jetstream.JetStream, lease time.Duration) (taker, error) {
	put := func(ctx context.Context, key string, last uint64) (uint64, error) {
		m := nats.NewMsg("$KV." + natsControl + "." + key)
		m.Header.Set("Nats-TTL", lease.String())
		ack, err := js.PublishMsg(ctx, m, jetstream.WithExpectLastSequencePerSubject(last))
		if err != nil {
			return 0, err
		}
		return ack.Sequence, nil
	}
	return func(ctx context.Context, key string) (int64, func() bool, func(), error) {
		at, err := put(ctx, key, 0)
		if err != nil {
			return 0, nil, nil, err
		}
		held, end := context.WithCancel(context.Background())
		token := int64(at)
		go func() {
			for ; held.Err() == nil; pause(lease / 4) {
				next, err := put(held, key, at)
				if err == nil {
					at = next
				} else if strings.Contains(err.Error(), "wrong last sequence") {
					end()
				}
			}
		}()
		return token, func() bool { return held.Err() == nil }, func() {
			end()
			ctx, cancel := context.WithTimeout(context.Background(), lease)
			defer cancel()
			_ = js.Conn().Publish("$JS.API.STREAM.PURGE.KV_"+natsControl, []byte(`{"filter":"$KV.`+natsControl+"."+key+`"}`))
			<-ctx.Done()
		}, nil
	}, nil
}
