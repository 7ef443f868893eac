//go:build long && linux

package zkstore

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/casstore"
)

// Processes that have ended leave their places in line. A lock that is kept for them was refused for ever to callers that ask
// once. The first of those processes is offered the lock, so they are refused for 3 s.
func TestLocksThatAreKeptForEndedProcessesAreHadByCallersThatAskOnce(t *testing.T) {
	const keys, ended, soon = 200, 2, time.Minute
	addr := startServer(t)
	process := func() (*core.Locker, *Conn) {
		conn, err := Connect([]string{addr}, nil)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(conn.Close)
		store, err := New(conn, casstore.Logger(slog.New(slog.NewTextHandler(io.Discard, nil))))
		if err != nil {
			t.Fatal(err)
		}
		l, err := core.New(store)
		if err != nil {
			t.Fatal(err)
		}
		return l, conn
	}
	holder, _ := process()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var leases []*core.Lease
	for i := range keys {
		lease, err := holder.Lock(ctx, fmt.Sprint("k", i))
		if err != nil {
			t.Fatal(err)
		}
		leases = append(leases, lease)
	}
	var dead []*Conn
	for range ended {
		l, conn := process()
		dead = append(dead, conn)
		for i := range keys {
			go func() { _, _ = l.Lock(ctx, fmt.Sprint("k", i), core.Wait(time.Hour)) }()
		}
	}
	waits := func(i int) bool {
		view, err := openStore(t, addr).Look(ctx, fmt.Sprint("k", i))
		return err == nil && len(view.Waiting) > 0
	}
	for !waits(keys - 1) {
		<-time.After(100 * time.Millisecond)
	}
	<-time.After(2 * time.Second)
	for _, conn := range dead {
		conn.Close() // the locks and places are no nodes of the session
	}
	var all sync.WaitGroup
	released := time.Now()
	for _, lease := range leases {
		all.Go(func() {
			if err := lease.Release(ctx); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	asks, _ := process()
	left := map[int]bool{}
	for i := range keys {
		left[i] = true
	}
	for round := 1; len(left) > 0 && time.Since(released) < soon; round++ {
		for i := range left {
			_, err := asks.TryLock(ctx, fmt.Sprint("k", i))
			switch {
			case err == nil:
				delete(left, i)
			case !errors.Is(err, core.ErrHeld) && !errors.Is(err, core.ErrUnavailable): // the machine may be slow
				t.Fatal(err)
			}
		}
		t.Logf("%d of %d are refused in round %d, %v after the releases", len(left), keys, round, time.Since(released).Round(time.Millisecond))
	}
	if len(left) > 0 {
		t.Errorf("%d of %d locks are kept %v after their release; want none", len(left), keys, soon)
	}
}

// openStore opens a store of one more process.
func openStore(t *testing.T, addr string) *Store {
	t.Helper()
	conn, err := Connect([]string{addr}, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(conn.Close)
	store, err := New(conn)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = store.Close() })
	return store
}
