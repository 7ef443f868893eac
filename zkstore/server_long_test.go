//go:build long && linux

package zkstore

import (
	"bytes"
	"cmp"
	"context"
	"encoding/binary"
	"fmt"
	"hash/adler32"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"syscall"
	"testing"
	"time"

	"github.com/interlock-go/interlock/core/casstore"
)

// startServer starts a ZooKeeper of one member that ends with the test, and returns its
// address.
func startServer(t *testing.T) string {
	t.Helper()
	addr, _ := startOn(t, t.TempDir())
	return addr
}

// startOn starts a ZooKeeper of one member on a directory, and returns its address, and a
// function that ends it before the test does.
func startOn(t *testing.T, dir string) (address string, kill func()) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := l.Addr().(*net.TCPAddr)
	l.Close()
	file := filepath.Join(t.TempDir(), "zoo.cfg")
	config := fmt.Sprintf("tickTime=500\ndataDir=%s\nclientPort=%d\nclientPortAddress=127.0.0.1\nadmin.enableServer=false\n", dir, addr.Port)
	if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("java", "-Xmx192m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Dzookeeper.forceSync=no", "-Dzookeeper.digest.enabled=false",
		"-cp", cmp.Or(os.Getenv("INTERLOCK_ZOOKEEPER"), "/usr/share/java/zookeeper.jar"), "org.apache.zookeeper.server.quorum.QuorumPeerMain", file)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	started, ended := make(chan error), make(chan struct{})
	go func() {
		runtime.LockOSThread() // the kernel takes the death of this thread for the death of the parent: prctl(2), PR_SET_PDEATHSIG
		defer runtime.UnlockOSThread()
		defer close(ended)
		err := cmd.Start()
		started <- err
		if err == nil {
			_ = cmd.Wait() // how it ended does not matter
		}
	}()
	if err := <-started; err != nil {
		t.Fatalf("%v; apt-get install zookeeper brings what this test needs", err)
	}
	kill = func() {
		_ = cmd.Process.Kill()
		<-ended
	}
	t.Cleanup(kill)
	return addr.String(), kill
}

// setVersion gives a node another version in the newest snapshot below a directory.
func setVersion(t *testing.T, dir, path string, version int32) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "version-2", "snapshot.*"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no snapshot: %v", err)
	}
	data, err := os.ReadFile(files[len(files)-1])
	if err != nil {
		t.Fatal(err)
	}
	// A node is its path, its data, each after its length, the number of its rights, and five
	// numbers before its version: of two transactions, and two times.
	name := append(binary.BigEndian.AppendUint32(nil, uint32(len(path))), path...)
	at := bytes.Index(data, name)
	if at < 0 {
		t.Fatalf("%s is not in the snapshot", path)
	}
	at += len(name)
	at += 4 + int(binary.BigEndian.Uint32(data[at:])) + 5*8
	binary.BigEndian.PutUint32(data[at:], uint32(version))
	// The end is a checksum, and the text "/" after its length.
	end := len(data) - 13
	binary.BigEndian.PutUint64(data[end:], uint64(adler32.Checksum(data[:end])))
	if err := os.WriteFile(files[len(files)-1], data, 0o600); err != nil {
		t.Fatal(err)
	}
}

// A version has 32 bits, and a request of version -1 compares none. A lock of which others wait
// cannot be created anew, since a node with nodes below cannot be deleted.
func TestAVersionThatWrapsIsStillCompared(t *testing.T) {
	dir := t.TempDir()
	addr, kill := startOn(t, dir)
	lock := "t/k/lock"
	s := openServer(t, addr)
	mustCommit(t, s, casstore.Txn{Then: []casstore.Op{{Name: lock, Value: "v"}, {Name: lock + "/w", Value: "waits"}}})
	kill()
	_, kill = startOn(t, dir) // it begins with a snapshot
	awaitFile(t, filepath.Join(dir, "version-2", "snapshot.*"), 2)
	kill()
	setVersion(t, dir, "/"+lock, anyVersion-4)
	addr, _ = startOn(t, dir)
	s = openServer(t, addr)
	at := mustCommit(t, s, casstore.Txn{Read: []string{lock}}).Read[0].Revision
	if int32(at.Version) != anyVersion-4 {
		t.Fatalf("the lock has version %d: the test has gone blind", at.Version)
	}
	for i := range 8 {
		before := at
		answer := mustCommit(t, s, casstore.Txn{
			If: []casstore.Condition{{Name: lock, Revision: at}}, Then: []casstore.Op{{Name: lock, Value: fmt.Sprint(i)}},
		})
		if !answer.Done {
			t.Fatalf("write %d: the lock has not the revision %+v", i, at)
		}
		if at = answer.Written[0]; int32(at.Version) == anyVersion {
			t.Fatalf("write %d leaves the lock at version %d, which is compared with none", i, at.Version)
		}
		for name, txn := range map[string]casstore.Txn{
			"a write":      {Then: []casstore.Op{{Name: lock, Value: "late"}}},
			"a comparison": {Then: []casstore.Op{{Name: "t/other", Value: "late"}}},
		} {
			txn.If = []casstore.Condition{{Name: lock, Revision: before}}
			if answer, err := openServer(t, addr).Commit(t.Context(), txn); err != nil || answer.Done {
				t.Errorf("after write %d, %s at the revision before: %+v, %v; want that it fails", i, name, answer, err)
			}
		}
	}
	if int32(at.Version) < 0 {
		t.Errorf("the version is %d after all: the test has gone blind", at.Version)
	}
}

// awaitFile waits until there are some files of a pattern, the last of them whole.
func awaitFile(t *testing.T, pattern string, n int) {
	t.Helper()
	for end := time.Now().Add(time.Minute); time.Now().Before(end); <-time.After(50 * time.Millisecond) {
		files, _ := filepath.Glob(pattern)
		if len(files) < n {
			continue
		}
		data, err := os.ReadFile(files[len(files)-1])
		if err == nil && bytes.HasSuffix(data, []byte{0, 0, 0, 1, '/'}) {
			return
		}
	}
	t.Fatalf("%s does not have %d files", pattern, n)
}

// far is a connection to a server that is some way off: a write arrives later, and does not
// delay the next write.
type far struct {
	net.Conn
	sent  chan parcel
	ended context.Context
	end   context.CancelFunc
}

type parcel struct {
	due  time.Time
	data []byte
}

const way = 10 * time.Millisecond

func dialFar(network, addr string, limit time.Duration) (net.Conn, error) {
	conn, err := net.DialTimeout(network, addr, limit)
	if err != nil {
		return nil, err
	}
	f := far{Conn: conn, sent: make(chan parcel, 10_000)}
	f.ended, f.end = context.WithCancel(context.Background())
	go func() {
		for {
			select {
			case p := <-f.sent:
				<-time.After(time.Until(p.due))
				_, _ = f.Conn.Write(p.data) // a broken connection ends the read
			case <-f.ended.Done():
				return
			}
		}
	}()
	return f, nil
}

func (f far) Write(p []byte) (int, error) {
	f.sent <- parcel{time.Now().Add(way), bytes.Clone(p)}
	return len(p), nil
}

func (f far) Close() error {
	f.end()
	return f.Conn.Close()
}
