//go:build long && linux

package consensus_test

import (
	"context"
	"fmt"
	"net"
	"os/exec"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/casstore"
	"github.com/interlock-go/interlock/zkstore"
)

// requestCounter counts the packets that clients send: each request is written at once.
type requestCounter struct{ writes, reads atomic.Int64 }

func (c *requestCounter) dial(network, addr string, timeout time.Duration) (net.Conn, error) {
	conn, err := net.DialTimeout(network, addr, timeout)
	return &countedConn{conn, c}, err
}

type countedConn struct {
	net.Conn
	counter *requestCounter
}

// Write counts a request. After the length and the number of a packet comes its type.
func (c *countedConn) Write(p []byte) (int, error) {
	if len(p) >= 12 {
		switch p[11] {
		case 1, 2, 5, 14: // create, delete, setData, multi
			c.counter.writes.Add(1)
		case 3, 4, 8, 12: // exists, getData, getChildren, getChildren2
			c.counter.reads.Add(1)
		}
	}
	return c.Conn.Write(p)
}

// countedEnsemble starts an ensemble. conn makes a connection to it, and count returns the requests of
// all of these.
func countedEnsemble(t *testing.T) (conn func() *zkstore.Conn, members []*exec.Cmd, count func() (writes, reads int64)) {
	t.Helper()
	e, counter := newEnsemble(t), &requestCounter{}
	for _, m := range e.members {
		members = append(members, m.cmd)
	}
	return func() *zkstore.Conn {
		conn, err := zkstore.Connect(allFar(t, e.addrs()), counter.dial)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(conn.Close)
		return conn
	}, members, func() (int64, int64) { return counter.writes.Load(), counter.reads.Load() }
}

// A busy process, or a process with callers for one key, costs ZooKeeper fewer transactions
// with this store than with the lock of its client. Times are logged, and transactions are
// compared: they do not depend on the machine.
func TestTransactionsOfPairsBesideTheLockOfZooKeepersClient(t *testing.T) {
	conn, members, count := countedEnsemble(t)
	locks := [2]pair{zookeeperPair(t, conn()), lockPair(conn())}
	for _, part := range []struct {
		callers, keys int
		least         float64 // how many times fewer transactions a pair takes
	}{{1, 1, 1}, {16, 16, 1}, {256, 256, 2}, {16, 1, 20}} {
		name := fmt.Sprintf("%d callers of %d keys", part.callers, part.keys)
		all := beside(t, part.callers, part.keys, members, count, locks)
		t.Logf("%s: interlock %v; zk.Lock %v", name, all[0], all[1])
		if ours, theirs := all[0].writesOfAPair(), all[1].writesOfAPair(); theirs < part.least*ours*0.95 {
			t.Errorf("%s: %.2f transactions a pair, and the lock of the client takes %.2f", name, ours, theirs)
		}
		if all[0].reads > all[0].pairs/20 {
			t.Errorf("%s: %d reads for %d pairs of locks for which no other process waits", name, all[0].reads, all[0].pairs)
		}
	}
}

func zookeeperPair(t *testing.T, conn *zkstore.Conn) pair {
	t.Helper()
	store, err := zkstore.New(conn, casstore.Timeout(limit))
	if err != nil {
		t.Fatal(err)
	}
	locker, err := core.New(store, core.Watchdog(time.Minute), core.Unlisted())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = locker.Close(context.Background())
		_ = store.Close()
	})
	return func(ctx context.Context, _ int, key string) error {
		return locker.Do(ctx, key, func(context.Context) error { return nil })
	}
}

func lockPair(conn *zkstore.Conn) pair {
	return func(_ context.Context, _ int, key string) error {
		l := zk.NewLock(conn.Conn, "/curator/"+key, zk.WorldACL(zk.PermAll))
		if err := l.Lock(); err != nil {
			return err
		}
		return l.Unlock()
	}
}

func TestOnZooKeeperHoldersAndWaitersAreIdle(t *testing.T) {
	e := newEnsemble(t)
	var counter [2]requestCounter
	idle(t, func(i int) core.Store {
		conn, err := zkstore.Connect(e.addrs(), counter[i].dial)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(conn.Close)
		return openOn(t, conn, casstore.Timeout(limit))
	}, func(i int) int64 { return counter[i].writes.Load() })
}

// The client keeps a watch until it fires.
func TestOnZooKeeperAWatchThatHasNotFiredIsUsedAgain(t *testing.T) {
	e := newEnsemble(t)
	var counter requestCounter
	conn, err := zkstore.Connect(allFar(t, e.addrs()), counter.dial)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(conn.Close)
	s := zkstore.Server(conn)
	if _, err := s.Commit(t.Context(), casstore.Txn{Then: []casstore.Op{{Name: "w/k/lock", Value: "v"}}}); err != nil {
		t.Fatal(err)
	}
	watch := func() int64 {
		before := counter.reads.Load()
		ctx, cancel := context.WithTimeout(t.Context(), limit)
		defer cancel()
		_ = s.Watch(ctx, "w/k/", func(found []casstore.Change) {
			if len(found) != 1 || found[0].Value != "v" {
				t.Errorf("a watch reports %+v", found)
			}
			cancel()
		})
		return counter.reads.Load() - before
	}
	if first, second := watch(), watch(); first == 0 || second > 0 {
		t.Errorf("two watches of the same send %d and %d requests", first, second)
	}
}

// As [TestRequestsOfGrantsThatManyProcessesWaitForBesideTheMutexOfEtcd].
func TestOnZooKeeperRequestsOfGrantsThatManyProcessesWaitFor(t *testing.T) {
	conn, members, count := countedEnsemble(t)
	for _, processes := range []int{1, 4, 24, 48} {
		locks := [2]pair{processesPair(t, processes, func() core.Store { return openOn(t, conn(), casstore.Timeout(limit)) }), lockPair(conn())}
		all := beside(t, processes, 1, members, count, locks)
		t.Logf("%d processes: interlock %v; zk.Lock %v", processes, all[0], all[1])
		if ours := all[0].writesOfAPair(); ours > 6 {
			t.Errorf("%d processes: %.2f transactions a grant; want 6 at most", processes, ours)
		}
	}
}
