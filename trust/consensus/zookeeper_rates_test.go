//go:build long && linux

package consensus_test

import (
	"context"
	"fmt"
	"net"
	"sync"
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

// Write counts a request. After the length and the number of a packet comes what it asks for.
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

// A process that is busy, or whose callers want one key, costs ZooKeeper fewer transactions
// with this store than with the lock of its client. Times are logged, and transactions are
// compared: they do not depend on the machine.
func TestTransactionsOfPairsBesideTheLockOfZooKeepersClient(t *testing.T) {
	e := newEnsemble(t)
	var counter requestCounter
	conn := func() *zk.Conn {
		conn, err := zkstore.Connect(e.addrs(), counter.dial)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(conn.Close)
		return conn
	}
	ours, theirs := zookeeperPair(t, conn()), lockPair(conn())
	for _, part := range []struct {
		callers, keys int
		least         float64 // how many times fewer transactions a pair takes
	}{{1, 1, 1}, {16, 16, 1}, {256, 256, 2}, {16, 1, 20}} {
		name := fmt.Sprintf("%d callers of %d keys", part.callers, part.keys)
		var writes, reads, rate [2]float64
		for i, one := range []pair{ours, theirs} {
			keepOnce(t, part.callers, part.keys, one) // the nodes are made
			w, r, begin := counter.writes.Load(), counter.reads.Load(), time.Now()
			n := float64(keep(t, part.callers, part.keys, one))
			writes[i], reads[i] = float64(counter.writes.Load()-w)/n, float64(counter.reads.Load()-r)/n
			rate[i] = n / time.Since(begin).Seconds()
		}
		t.Logf("%s: interlock %.0f pairs a second, %.2f transactions and %.2f reads a pair; zk.Lock %.0f, %.2f and %.2f",
			name, rate[0], writes[0], reads[0], rate[1], writes[1], reads[1])
		if writes[1] < part.least*writes[0]*0.95 {
			t.Errorf("%s: %.2f transactions a pair, and the lock of the client takes %.2f", name, writes[0], writes[1])
		}
	}
}

// keepOnce has each caller take its lock once.
func keepOnce(t *testing.T, callers, keys int, one pair) {
	t.Helper()
	var all sync.WaitGroup
	for i := range callers {
		all.Go(func() {
			if err := one(t.Context(), i, fmt.Sprint("rate-", i%keys)); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
}

func zookeeperPair(t *testing.T, conn *zk.Conn) pair {
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

func lockPair(conn *zk.Conn) pair {
	return func(_ context.Context, _ int, key string) error {
		l := zk.NewLock(conn, "/curator/"+key, zk.WorldACL(zk.PermAll))
		if err := l.Lock(); err != nil {
			return err
		}
		return l.Unlock()
	}
}

// An idle holder, and a process that waits, cost a transaction each third of the lease at most.
func TestOnZooKeeperHoldersAndWaitersAreIdle(t *testing.T) {
	e := newEnsemble(t)
	const lease = 6 * time.Second
	var locker [2]*core.Locker
	var counter [2]requestCounter
	for i := range locker {
		conn, err := zkstore.Connect(e.addrs(), counter[i].dial)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(conn.Close)
		if locker[i], err = core.New(openOn(t, conn, casstore.Timeout(limit)), core.Watchdog(lease)); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = locker[i].Close(context.Background()) })
	}
	held, err := locker[0].Lock(t.Context(), "k")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = held.Release(context.Background()) }()
	ctx, cancel := context.WithCancel(t.Context())
	left := make(chan struct{})
	go func() {
		defer close(left)
		_, _ = locker[1].Lock(ctx, "k")
	}()
	pause(2 * lease / 3) // it waits
	var writes, reads [2]int64
	for i := range counter {
		writes[i], reads[i] = counter[i].writes.Load(), counter[i].reads.Load()
	}
	begin := time.Now()
	pause(2 * lease)
	most := int64(time.Since(begin)/(lease/3)) + 1
	for i, who := range []string{"a holder", "a process that waits"} {
		w, r := counter[i].writes.Load()-writes[i], counter[i].reads.Load()-reads[i]
		t.Logf("%s: %d transactions and %d reads in %v", who, w, r, time.Since(begin).Round(time.Millisecond))
		if w > most {
			t.Errorf("%s sends %d transactions in %d thirds of its lease", who, w, most)
		}
	}
	cancel()
	<-left
}

// The client keeps a watch until it fires.
func TestOnZooKeeperAWatchThatHasNotFiredIsUsedAgain(t *testing.T) {
	e := newEnsemble(t)
	var counter requestCounter
	conn, err := zkstore.Connect(e.addrs(), counter.dial)
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
