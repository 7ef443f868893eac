//go:build long && linux

package zkstore

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/interlock-go/interlock/core"
)

// docs/consensus.md has these numbers. A process 10 ms away had 0.16 grants for each of a near one, or 0.03; with the lock
// of the client's library it has 0.3.
func TestAProcessTenMillisecondsAwayHasItsShareOfAKey(t *testing.T) {
	addr := startServer(t)
	ours := func(conn *Conn) func() (release func()) {
		store, err := New(conn)
		if err != nil {
			t.Fatal(err)
		}
		l, err := core.New(store)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = l.Close(context.Background()); _ = store.Close() })
		return func() func() {
			lease, err := l.Lock(t.Context(), "k")
			if err != nil {
				t.Error(err)
				return func() {}
			}
			return func() {
				if err := lease.Release(t.Context()); err != nil {
					t.Error(err)
				}
			}
		}
	}
	theirs := func(conn *Conn) func() (release func()) {
		return func() func() {
			l := zk.NewLock(conn.Conn, "/theirs", zk.WorldACL(zk.PermAll))
			if err := l.Lock(); err != nil {
				t.Error(err)
				return func() {}
			}
			return func() { _ = l.Unlock() }
		}
	}
	for _, near := range []int{1, 3} {
		with, beside := shareOf(t, addr, near, ours), shareOf(t, addr, near, theirs)
		t.Logf("beside %d near processes: %.2f grants for each of a near one; with zk.Lock %.2f", near, with, beside)
		if with < 0.6*beside {
			t.Errorf("beside %d near processes, a share of %.2f; want 0.6 of the %.2f of zk.Lock at least", near, with, beside)
		}
	}
}

// shareOf has a process 10 ms away and near processes use a key, and returns its share.
func shareOf(t *testing.T, addr string, near int, locker func(*Conn) func() (release func())) float64 {
	t.Helper()
	counts, locks := make([]int, 1+near), make([]func() func(), 1+near)
	for i := range locks {
		dial := dialFar
		if i > 0 {
			dial = nil
		}
		conn, err := Connect([]string{addr}, dial)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(conn.Close)
		locks[i] = locker(conn)
	}
	begin := time.Now().Add(2 * time.Second)
	end := begin.Add(8 * time.Second)
	var all sync.WaitGroup
	for i := range locks {
		all.Go(func() {
			for time.Now().Before(end) {
				release := locks[i]()
				<-time.After(2 * time.Millisecond)
				if time.Now().After(begin) {
					counts[i]++
				}
				release()
			}
		})
	}
	all.Wait()
	sum := 0
	for _, n := range counts[1:] {
		sum += n
	}
	t.Logf("grants %v", counts)
	return float64(counts[0]) * float64(near) / float64(max(1, sum))
}
