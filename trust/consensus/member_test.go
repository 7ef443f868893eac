//go:build long && linux

package consensus_test

import (
	"fmt"
	"math/rand/v2"
	"net"
	"net/url"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/etcdctl/v3/ctlv3"
	"go.etcd.io/etcd/server/v3/embed"
	"go.uber.org/zap"

	"github.com/interlock-go/interlock/etcdstore"
)

// The test binary is a member of a cluster, if its environment says which.
const memberEnv = "INTERLOCK_TEST_ETCD_MEMBER"

// tokenLife is the time without use after which etcd forgets a token.
const tokenLife = 3 * time.Second

// How many bytes a member has, if its environment says so.
const quotaEnv = "INTERLOCK_TEST_ETCD_QUOTA"

// The test binary is etcdctl, if its environment says so.
const etcdctlEnv = "INTERLOCK_TEST_ETCDCTL"

func TestMain(m *testing.M) {
	if member := os.Getenv(memberEnv); member != "" {
		if err := serve(strings.Split(member, " ")); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	if member := os.Getenv(natsEnv); member != "" {
		if err := serveNATS(strings.Split(member, " ")); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	if os.Getenv(etcdctlEnv) != "" {
		ctlv3.MustStart()
		os.Exit(0)
	}
	if how := os.Getenv(workerEnv); how != "" {
		if err := work(strings.Split(how, " ")); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
	os.Exit(m.Run())
}

// serve runs a member until a signal: its name, directory, URL for clients, URL for other
// members, the same as they know it, and the cluster.
func serve(of []string) error {
	config := embed.NewConfig()
	client, peer, advertised := parsed(of[2]), parsed(of[3]), parsed(of[4])
	config.Name, config.Dir = of[0], of[1]
	config.ListenClientUrls, config.AdvertiseClientUrls = client, client
	config.ListenPeerUrls, config.AdvertisePeerUrls = peer, advertised
	config.InitialCluster, config.InitialClusterToken = of[5], "interlock"
	config.LogLevel, config.LogOutputs = "error", []string{of[1] + ".log"}
	config.QuotaBackendBytes, _ = strconv.ParseInt(os.Getenv(quotaEnv), 10, 64) // else etcd's own
	config.AuthTokenTTL = uint(tokenLife / time.Second)
	config.AutoCompactionMode, config.AutoCompactionRetention = "periodic", "1h"
	if _, err := os.Stat(filepath.Join(of[1], "member")); err == nil {
		config.ClusterState = embed.ClusterStateFlagExisting
	}
	etcd, err := embed.StartEtcd(config)
	if err != nil {
		return err
	}
	ended := make(chan os.Signal, 1)
	signal.Notify(ended, syscall.SIGTERM)
	select {
	case err := <-etcd.Err():
		return err
	case <-ended:
		etcd.Close()
		return nil
	}
}

func parsed(text string) []url.URL {
	u, err := url.Parse(text)
	if err != nil {
		panic(err)
	}
	return []url.URL{*u}
}

// cluster is three members.
type cluster struct {
	t        *testing.T
	members  []*member
	network  *network
	observer *clientv3.Client
}

// member is a member of the cluster.
type member struct {
	t          *testing.T
	args, addr string
	id         string // as other members hear it
	cmd        *exec.Cmd
	ended      <-chan struct{}
}

// newCluster starts a cluster that ends with the test.
func newCluster(t *testing.T) *cluster {
	t.Helper()
	c := &cluster{t: t, network: newNetwork()}
	var list, roads []string
	ports := freePorts(t, 6)
	for i := range 3 {
		roads = append(roads, c.network.lead(t, fmt.Sprint("127.0.0.1:", ports[2*i+1])))
		list = append(list, fmt.Sprintf("m%d=http://%s", i, roads[i]))
	}
	for i := range 3 {
		addr := fmt.Sprintf("127.0.0.1:%d", ports[2*i])
		c.members = append(c.members, &member{t: t, addr: addr, args: strings.Join([]string{
			fmt.Sprint("m", i), filepath.Join(t.TempDir(), fmt.Sprint("m", i)), "http://" + addr,
			fmt.Sprint("http://127.0.0.1:", ports[2*i+1]), "http://" + roads[i], strings.Join(list, ","),
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
	c.observer = c.client()
	c.leader()
	members, err := c.observer.MemberList(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range members.Members {
		i := slices.IndexFunc(c.members, func(one *member) bool { return strings.HasPrefix(one.args, m.Name+" ") })
		c.members[i].id = fmt.Sprintf("%x", m.ID)
		c.network.ids[fmt.Sprint("127.0.0.1:", ports[2*i+1])] = c.members[i].id
	}
	return c
}

// freePorts finds ports below the ports that Linux gives to connections and to listeners that
// name none: such a port can be taken before its member starts, or while the member is down.
func freePorts(t *testing.T, n int) []int {
	t.Helper()
	var ports []int
	for tries := 0; len(ports) < n; tries++ {
		l, err := net.Listen("tcp", fmt.Sprint("127.0.0.1:", 10_000+rand.N(22_000)))
		switch {
		case err == nil:
			defer l.Close()
			ports = append(ports, l.Addr().(*net.TCPAddr).Port)
		case tries > 1000:
			t.Fatal(err)
		}
	}
	return ports
}

func (m *member) start() {
	m.t.Helper()
	m.cmd = exec.Command(os.Args[0])
	m.cmd.Env = append(os.Environ(), memberEnv+"="+m.args)
	if binary := os.Getenv("INTERLOCK_ETCD"); binary != "" { // of another version
		of := strings.Split(m.args, " ")
		m.cmd = exec.Command(binary, "--name", of[0], "--data-dir", of[1], "--listen-client-urls", of[2],
			"--advertise-client-urls", of[2], "--listen-peer-urls", of[3], "--initial-advertise-peer-urls", of[4],
			"--initial-cluster", of[5], "--log-level", "error", "--log-outputs", of[1]+".log")
	}
	m.cmd.Stderr = os.Stderr
	var err error
	if m.ended, err = launch(m.cmd); err != nil {
		m.t.Fatal(err)
	}
}

// launch starts a process that dies with the tests. Linux tells a child that its parent has
// died when the thread ends that forked (prctl(2), PR_SET_PDEATHSIG): this one lives as long
// as the child.
func launch(cmd *exec.Cmd) (ended <-chan struct{}, err error) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	done, started := make(chan struct{}), make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		defer close(done)
		err := cmd.Start()
		started <- err
		if err == nil {
			_ = cmd.Wait() // how it ended does not matter
		}
	}()
	return done, <-started
}

func (m *member) signal(s syscall.Signal) {
	m.t.Helper()
	if err := m.cmd.Process.Signal(s); err != nil {
		m.t.Error(err)
	}
}

// kill ends a member and waits for its end.
func (m *member) kill() {
	_ = m.cmd.Process.Kill()
	<-m.ended
}

// client makes a client that knows all members, and is closed with the test.
func (c *cluster) client() *clientv3.Client {
	c.t.Helper()
	return connect(c.t, c.addrs()...)
}

func connect(t *testing.T, addrs ...string) *clientv3.Client {
	t.Helper()
	client, err := etcdstore.Connect(clientv3.Config{Endpoints: addrs, Logger: zap.NewNop()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = client.Close() })
	return client
}

// leader waits until there is a leader, and returns it.
func (c *cluster) leader() *member {
	c.t.Helper()
	for end := time.Now().Add(2 * time.Minute); time.Now().Before(end); pause(50 * time.Millisecond) {
		if m := c.leads(time.Second); m != nil {
			return m
		}
	}
	c.t.Fatal("the cluster has no leader")
	return nil
}

// leads returns the member that says within a limit that it leads, or nil.
func (c *cluster) leads(limit time.Duration) *member {
	answers := make(chan *member, len(c.members))
	for _, m := range c.members {
		go func() {
			ctx, cancel := timeout(c.t, limit)
			defer cancel()
			status, err := c.observer.Status(ctx, m.addr)
			if err != nil || status.Leader == 0 || status.Leader != status.Header.MemberId {
				answers <- nil
				return
			}
			answers <- m
		}()
	}
	for range c.members {
		if m := <-answers; m != nil {
			return m
		}
	}
	return nil
}

func (c *cluster) led() bool { return c.leads(50*time.Millisecond) != nil }

func (c *cluster) leading() server { return c.leader() }

func (c *cluster) addrs() []string {
	var addrs []string
	for _, m := range c.members {
		addrs = append(addrs, m.addr)
	}
	return addrs
}
