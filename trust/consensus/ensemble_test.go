//go:build long && linux

package consensus_test

import (
	"cmp"
	"flag"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/interlock-go/interlock/zkstore"
)

// fsync has ZooKeeper acknowledge a write only when it is on the disk: for rates.
var fsync = flag.Bool("fsync", false, "ZooKeeper acknowledges only what is on the disk")

// ensemble is three members of ZooKeeper.
type ensemble struct {
	t       *testing.T
	members []*zkMember
	network *pairs
}

// zkMember is a member, a process.
type zkMember struct {
	t         *testing.T
	addr, dir string
	cmd       *exec.Cmd
	ended     <-chan struct{}
}

// newEnsemble starts an ensemble that ends with the test.
func newEnsemble(t *testing.T) *ensemble {
	t.Helper()
	e := &ensemble{t: t, network: &pairs{t: t, conns: map[net.Conn][2]int{}, cut: -1}}
	ports := freePorts(t, 9)
	for i := range 3 {
		m := &zkMember{t: t, addr: fmt.Sprintf("127.0.0.1:%d", ports[3*i]), dir: t.TempDir()}
		config := fmt.Sprintf("tickTime=500\ninitLimit=10\nsyncLimit=4\ndataDir=%s\nclientPort=%d\nclientPortAddress=127.0.0.1\n"+
			"admin.enableServer=false\n4lw.commands.whitelist=srvr\nmaxClientCnxns=0\n", m.dir, ports[3*i])
		for k := range 3 {
			port := ports[3*k+1]
			if k != i {
				port = e.network.lead(i, k, port)
			}
			config += fmt.Sprintf("server.%d=127.0.0.1:%d:%d\n", k+1, port, ports[3*k+2])
		}
		for name, text := range map[string]string{"zoo.cfg": config, "myid": fmt.Sprint(i + 1)} {
			if err := os.WriteFile(filepath.Join(m.dir, name), []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		e.members = append(e.members, m)
		m.start()
	}
	t.Cleanup(func() {
		for _, m := range e.members {
			m.kill()
		}
	})
	e.leader()
	return e
}

// pairs is the network between the members: each connection to another member goes through
// it. Votes do not: a member tells the others its own address for them.
type pairs struct {
	t     *testing.T
	mu    sync.Mutex
	cut   int // the place of the member that is cut off; -1: none
	conns map[net.Conn][2]int
}

// lead has a new port lead from one member to another one's.
func (p *pairs) lead(from, to, port int) int {
	p.t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		p.t.Fatal(err)
	}
	p.t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go p.carry(conn, from, to, port)
		}
	}()
	return l.Addr().(*net.TCPAddr).Port
}

// carry carries one connection. A follower may come before its leader listens.
func (p *pairs) carry(conn net.Conn, from, to, port int) {
	defer conn.Close()
	var peer net.Conn
	var err error
	for end := time.Now().Add(3 * time.Second); peer == nil; pause(5 * time.Millisecond) {
		if peer, err = net.Dial("tcp", fmt.Sprint("127.0.0.1:", port)); err != nil && time.Now().After(end) {
			return
		}
	}
	defer peer.Close()
	p.mu.Lock()
	open := p.cut < 0 || p.cut != from && p.cut != to
	if open {
		p.conns[conn] = [2]int{from, to}
	}
	p.mu.Unlock()
	if !open {
		return
	}
	go func() {
		_, _ = io.Copy(conn, peer)
		_ = conn.Close()
	}()
	_, _ = io.Copy(peer, conn)
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.conns, conn)
}

// cutOff cuts a member off; -1 ends that.
func (p *pairs) cutOff(member int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.cut = member
	for conn, between := range p.conns {
		if member == between[0] || member == between[1] {
			_ = conn.Close()
		}
	}
}

func (m *zkMember) start() {
	m.t.Helper()
	force := "no" // these tests end processes only, so writes need no fsync
	if *fsync {
		force = "yes"
	}
	m.cmd = exec.Command("java", "-Xmx192m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Dzookeeper.forceSync="+force,
		"-cp", cmp.Or(os.Getenv("INTERLOCK_ZOOKEEPER"), "/usr/share/java/zookeeper.jar"), "org.apache.zookeeper.server.quorum.QuorumPeerMain", filepath.Join(m.dir, "zoo.cfg"))
	var err error
	if m.ended, err = launch(m.cmd); err != nil {
		m.t.Fatalf("%v; apt-get install zookeeper brings what this test needs", err)
	}
}

func (m *zkMember) signal(s syscall.Signal) {
	m.t.Helper()
	if err := m.cmd.Process.Signal(s); err != nil {
		m.t.Error(err)
	}
}

// kill ends a member and waits for its end.
func (m *zkMember) kill() {
	_ = m.cmd.Process.Kill()
	<-m.ended
}

func (e *ensemble) addrs() []string {
	var addrs []string
	for _, m := range e.members {
		addrs = append(addrs, m.addr)
	}
	return addrs
}

// conn makes a connection that is closed with the test.
func (e *ensemble) conn() *zkstore.Conn {
	e.t.Helper()
	conn, err := zkstore.Connect(e.addrs(), nil)
	if err != nil {
		e.t.Fatal(err)
	}
	e.t.Cleanup(conn.Close)
	return conn
}

// leader waits until there is a leader that all others follow, and returns it.
func (e *ensemble) leader() *zkMember {
	e.t.Helper()
	for end := time.Now().Add(2 * time.Minute); time.Now().Before(end); pause(20 * time.Millisecond) {
		var leader *zkMember
		followers := 0
		for _, m := range e.members {
			switch m.mode() {
			case "leader":
				leader = m
			case "follower":
				followers++
			}
		}
		if leader != nil && followers == len(e.members)-1 {
			return leader
		}
	}
	e.t.Fatal("the ensemble has no leader that all follow")
	return nil
}

func (e *ensemble) leading() server { return e.leader() }

func (e *ensemble) led() bool {
	return slices.ContainsFunc(e.members, func(m *zkMember) bool { return m.mode() == "leader" })
}

// mode is the mode that the member reports: leader or follower; empty if it reports nothing.
func (m *zkMember) mode() string {
	conn, err := net.DialTimeout("tcp", m.addr, time.Second)
	if err != nil {
		return ""
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(time.Second))
	_, _ = conn.Write([]byte("srvr"))
	text, _ := io.ReadAll(conn)
	_, mode, _ := strings.Cut(string(text), "Mode: ")
	mode, _, _ = strings.Cut(mode, "\n")
	return mode
}
