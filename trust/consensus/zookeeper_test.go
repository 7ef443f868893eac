//go:build long && linux

package consensus_test

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/interlock-go/interlock/core/casstore"
	"github.com/interlock-go/interlock/core/casstore/castest"
	"github.com/interlock-go/interlock/core/driver"
	"github.com/interlock-go/interlock/core/driver/drivertest"
	"github.com/interlock-go/interlock/zkstore"
)

func TestZooKeeperKeepsTheContractOfAServer(t *testing.T) {
	e := newEnsemble(t)
	castest.Run(t, func(*testing.T) casstore.Server { return zkstore.Server(e.conn()) })
}

func TestTheStoreOnZooKeeperKeepsItsContract(t *testing.T) {
	e := newEnsemble(t)
	conn := e.conn()
	drivertest.Run(t, func(t *testing.T) driver.Store {
		store, err := zkstore.New(conn, casstore.Timeout(limit))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := store.Close(); err != nil {
				t.Errorf("Close: %v", err)
			}
		})
		return store
	})
}

// onZooKeeper makes a connection for a lock.
func onZooKeeper(lock func(*zkstore.Conn, time.Duration) (taker, error)) func([]string, time.Duration) (taker, error) {
	return func(addrs []string, lease time.Duration) (taker, error) {
		conn, err := zkstore.Connect(addrs, nil)
		if err != nil {
			return nil, err
		}
		return lock(conn, lease)
	}
}

func zookeeperLocked(conn *zkstore.Conn, lease time.Duration) (taker, error) {
	store, err := zkstore.New(conn)
	if err != nil {
		return nil, err
	}
	return byLocker(store, lease)
}

// ephemeral is the control: the lock of the client, an ephemeral node. It has no context, and
// says nothing when its session has ended, so its caller goes on until it gives the lock up.
func ephemeral(conn *zkstore.Conn, _ time.Duration) (taker, error) {
	return func(ctx context.Context, key string) (int64, func() bool, func(), error) {
		l := zk.NewLock(conn.Conn, "/control/"+key, zk.WorldACL(zk.PermAll))
		got := make(chan error, 1)
		go func() { got <- l.Lock() }()
		select {
		case err := <-got:
			if err != nil {
				return 0, nil, nil, err
			}
		case <-ctx.Done():
			go func() { // the lock knows no contexts
				if <-got == nil {
					_ = l.Unlock()
				}
			}()
			return 0, nil, nil, ctx.Err()
		}
		return instant(), func() bool { return true }, func() { _ = l.Unlock() }, nil
	}, nil
}

func TestOnZooKeeperNoLockIsHeldTwiceWhileTheLeaderIsStopped(t *testing.T) {
	const lease = 2 * time.Second
	run(t, newEnsemble(t), "zookeeper", lease, *rounds, stopLeader[*ensemble](t, lease), never).alone(t)
}

func TestOnZooKeeperNoLockIsHeldTwiceOrLostWhileTheLeaderIsKilled(t *testing.T) {
	killLeaders(t, newEnsemble(t), "zookeeper")
}

// The clients still reach the leader, which has lost its followers.
func TestOnZooKeeperNoLockIsHeldTwiceWhileTheLeaderIsCutOff(t *testing.T) {
	const lease = 2 * time.Second
	run(t, newEnsemble(t), "zookeeper", lease, *rounds, func(e *ensemble, h *history, _ []*worker) string {
		leader := e.leader()
		for i, m := range e.members {
			if m == leader {
				e.network.cutOff(i)
			}
		}
		pause(2 * lease)
		e.network.cutOff(-1)
		at := instant()
		e.leader()
		h.waitFor(t, at)
		return ""
	}, never).alone(t)
}

// The clients still reach a member that has lost the leader; it closes their connections.
func TestOnZooKeeperNoLockIsHeldTwiceWhileAFollowerIsCutOff(t *testing.T) {
	const lease = 2 * time.Second
	run(t, newEnsemble(t), "zookeeper", lease, *rounds, func(e *ensemble, h *history, _ []*worker) string {
		leader := e.leader()
		i := slices.IndexFunc(e.members, func(m *zkMember) bool { return m != leader })
		e.network.cutOff(i)
		eventually(t, "the follower loses its leader", func() bool { return e.members[i].mode() != "follower" })
		pause(lease)
		h.waitFor(t, instant())
		e.network.cutOff(-1)
		at := instant()
		e.leader()
		h.waitFor(t, at)
		return ""
	}, never).alone(t)
}

func TestOnZooKeeperNoLockIsHeldTwiceWhileItsHoldersAreStoppedAndKilled(t *testing.T) {
	const lease = time.Second
	run(t, newEnsemble(t), "zookeeper", lease, 4**rounds, disturbHolders[*ensemble](t, "zookeeper", lease, 5*time.Second), never).alone(t)
}

// A process that was stopped for longer than its session lasts goes on, and its ephemeral
// node is there no more. Nothing tells its handler.
func TestALockByAnEphemeralNodeIsHeldTwiceWhileItsHolderIsStopped(t *testing.T) {
	const lease = time.Second
	overlapping := func(h *history) bool { return len(h.judge().overlaps) > 0 }
	j := run(t, newEnsemble(t), "ephemeral", lease, 60, disturbHolders[*ensemble](t, "ephemeral", lease, 5*time.Second), overlapping)
	if len(j.overlaps) == 0 {
		t.Error("the control was not held twice: the faults are too mild to show anything")
	}
	for _, o := range j.overlaps {
		t.Logf("held twice: %s", o)
	}
}

func TestOnZooKeeperPlacesAndOffersExcludeWhileProcessesAreStoppedAndKilled(t *testing.T) {
	placesUnder(t, newEnsemble(t), "zookeeper-kinds")
}
