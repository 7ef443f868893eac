//go:build long && linux

package zkstore

import (
	"context"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/interlock-go/interlock/core"
)

// A process 10 ms away had no lock that a near one used, and a look at such a key never ended.
func TestAProcessFarFromZooKeeperHasALockThatANearOneUses(t *testing.T) {
	addr := startServer(t)
	locker := func(dial zk.Dialer) *core.Locker {
		conn, err := Connect([]string{addr}, dial)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(conn.Close)
		store, err := New(conn)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = store.Close() })
		l, err := core.New(store)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = l.Close(context.Background()) })
		return l
	}
	near, away := locker(nil), locker(dialFar)
	stop, counts := make(chan struct{}), make(chan int)
	go func() {
		n := 0
		for {
			select {
			case <-stop:
				counts <- n
				return
			default:
			}
			if err := near.Do(t.Context(), "k", func(context.Context) error { return nil }); err != nil {
				t.Error(err)
			}
			n++
		}
	}()
	for range 10 {
		lease, err := away.Lock(t.Context(), "k", core.Wait(time.Minute))
		if err != nil {
			t.Error(err)
			break
		}
		if err := lease.Release(t.Context()); err != nil {
			t.Error(err)
		}
	}
	close(stop)
	t.Logf("the near process had %d locks meanwhile", <-counts)
}
