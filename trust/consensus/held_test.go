//go:build long && linux

package consensus_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/casstore"
)

// holder is a process of a user that has transactions as well as locks on a server.
type holder struct {
	locker *core.Locker
	// write sends a transaction under the conditions of a lease. Held makes them once; the function that it
	// returns reports whether the server executed the transaction.
	held func(lease *core.Lease) (write func() bool)
	end  func() // the process reaches the server no more
}

// conditions has processes of a user write under a lock, and wants the writes of its holder alone.
func conditions(t *testing.T, start func() holder) {
	t.Helper()
	a, b := start(), start()
	lease, err := a.locker.Lock(t.Context(), "account/42")
	if err != nil {
		t.Fatal(err)
	}
	write := a.held(lease)
	want := func(write func() bool, want bool, when string) {
		t.Helper()
		if got := write(); got != want {
			t.Errorf("%s: the transaction was executed: %v; want %v", when, got, want)
		}
	}
	want(write, true, "held")
	if _, err := b.locker.Lock(t.Context(), "account/42", core.Wait(time.Second)); !errors.Is(err, core.ErrHeld) {
		t.Errorf("%v; want ErrHeld", err)
	}
	want(write, true, "a process has waited, and left")
	next := make(chan *core.Lease)
	go func() {
		lease, err := b.locker.Lock(t.Context(), "account/42")
		if err != nil {
			t.Error(err)
		}
		next <- lease
	}()
	pause(time.Second)
	want(write, true, "a process waits")
	a.end()
	lease = <-next
	want(write, false, "taken over")
	write = b.held(lease)
	want(write, true, "held by the next")
	if err := lease.Release(t.Context()); err != nil {
		t.Error(err)
	}
	want(write, false, "released")
}

func TestATransactionOfEtcdIsExecutedWhileTheLockIsHeld(t *testing.T) {
	c := newCluster(t)
	user := c.client()
	conditions(t, func() holder {
		client := c.client()
		store := open(t, client, casstore.Timeout(limit))
		return holder{
			locker: shortLived(t, store), end: func() { _ = client.Close() },
			held: func(lease *core.Lease) func() bool {
				held, err := store.Held(t.Context(), lease)
				if err != nil {
					t.Fatal(err)
				}
				return func() bool {
					done, err := user.Txn(t.Context()).If(held...).Then(clientv3.OpPut("balance/42", "90")).Commit()
					if err != nil {
						t.Fatal(err)
					}
					return done.Succeeded
				}
			},
		}
	})
}

func TestAMultiOfZooKeeperIsExecutedWhileTheLockIsHeld(t *testing.T) {
	e := newEnsemble(t)
	user := e.conn()
	if _, err := user.Create("/balance", nil, 0, zk.WorldACL(zk.PermAll)); err != nil {
		t.Fatal(err)
	}
	conditions(t, func() holder {
		conn := e.conn()
		store := openOn(t, conn, casstore.Timeout(limit))
		return holder{
			locker: shortLived(t, store), end: conn.Close,
			held: func(lease *core.Lease) func() bool {
				held, err := store.Held(t.Context(), lease)
				if err != nil {
					t.Fatal(err)
				}
				return func() bool {
					_, err := user.Multi(append(held, &zk.SetDataRequest{Path: "/balance", Data: []byte("90"), Version: -1})...)
					if err != nil && !errors.Is(err, zk.ErrBadVersion) && !errors.Is(err, zk.ErrNoNode) {
						t.Fatal(err)
					}
					return err == nil
				}
			},
		}
	})
}

// shortLived makes a locker with leases that end in the time of a test.
func shortLived(t *testing.T, store core.Store) *core.Locker {
	t.Helper()
	locker, err := core.New(store, core.Watchdog(10*time.Second))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		_ = locker.Close(ctx)
	})
	return locker
}
