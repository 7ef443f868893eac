//go:build long && linux

package consensus_test

import (
	"cmp"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/interlock-go/interlock/zkstore"
)

// ensemble is three members of ZooKeeper.
type ensemble struct {
	t       *testing.T
	members []*zkMember
}

// zkMember is one of them, a process.
type zkMember struct {
	t         *testing.T
	addr, dir string
	cmd       *exec.Cmd
	ended     <-chan struct{}
}

// newEnsemble starts an ensemble that ends with the test.
func newEnsemble(t *testing.T) *ensemble {
	t.Helper()
	e := &ensemble{t: t}
	var servers string
	ports := freePorts(t, 9)
	for i := range 3 {
		servers += fmt.Sprintf("server.%d=127.0.0.1:%d:%d\n", i+1, ports[3*i+1], ports[3*i+2])
	}
	for i := range 3 {
		m := &zkMember{t: t, addr: fmt.Sprintf("127.0.0.1:%d", ports[3*i]), dir: t.TempDir()}
		config := fmt.Sprintf("tickTime=500\ninitLimit=40\nsyncLimit=4\ndataDir=%s\nclientPort=%d\nclientPortAddress=127.0.0.1\n"+
			"admin.enableServer=false\n4lw.commands.whitelist=srvr\nmaxClientCnxns=0\n%s", m.dir, ports[3*i], servers)
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

func (m *zkMember) start() {
	m.t.Helper()
	// Nothing but a process ends in these tests, so what was written needs no fsync.
	m.cmd = exec.Command("java", "-Xmx192m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Dzookeeper.forceSync=no",
		"-cp", cmp.Or(os.Getenv("INTERLOCK_ZOOKEEPER"), "/usr/share/java/zookeeper.jar"), "org.apache.zookeeper.server.quorum.QuorumPeerMain", filepath.Join(m.dir, "zoo.cfg"))
	var err error
	if m.ended, err = launch(m.cmd); err != nil {
		m.t.Fatalf("%v; apt-get install zookeeper brings what this test needs", err)
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
func (e *ensemble) conn() *zk.Conn {
	e.t.Helper()
	conn, err := zkstore.Connect(e.addrs(), nil)
	if err != nil {
		e.t.Fatal(err)
	}
	e.t.Cleanup(conn.Close)
	return conn
}

// leader waits until there is a leader that two others follow, and returns it.
func (e *ensemble) leader() *zkMember {
	e.t.Helper()
	for end := time.Now().Add(2 * time.Minute); time.Now().Before(end); pause(20 * time.Millisecond) {
		for _, m := range e.members {
			if m.mode() == "leader" {
				return m
			}
		}
	}
	e.t.Fatal("the ensemble has no leader")
	return nil
}

// mode is what the member says it is: leader or follower; empty if it says nothing.
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
