package testkit

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/driver"
)

// Line is the network of one process.
type Line struct {
	mu    sync.Mutex
	cut   bool
	conns []net.Conn
}

// Dial makes a connection. Clients take it as their dialer.
func (l *Line) Dial(ctx context.Context, network, addr string) (net.Conn, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.cut {
		return nil, &net.OpError{Op: "dial", Net: network, Err: errors.New("cut by the test")}
	}
	conn, err := (&net.Dialer{}).DialContext(ctx, network, addr)
	if err == nil {
		l.conns = append(l.conns, conn)
	}
	return conn, err
}

// Cut ends all connections, as the death of the process does. None can be made until Mend.
func (l *Line) Cut() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.cut = true
	for _, conn := range l.conns {
		if half, ok := conn.(interface{ CloseWrite() error }); ok {
			_ = half.CloseWrite() // Close alone leaves the socket open until a pending Read has returned
		}
		_ = conn.Close()
	}
	l.conns = nil
}

// Mend has connections be made again.
func (l *Line) Mend() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.cut = false
}

// AskAfterEnded has processes end that wait for locks, releases the locks, and has callers ask once for each, in rounds. It
// returns how many callers of the first round are refused, which ask directly after the release. A lock that is kept for
// longer than a minute fails the test. open opens the store of a process, which is closed when t ends. stays says that all
// rounds are of one process, and not each of a new one: on a store without a clock only a process that stays finds out
// that others have ended. looks are stores that show the places in line; without them it is a store of open.
func AskAfterEnded(t *testing.T, open func(t *testing.T, line *Line) core.Store, stays bool, looks ...driver.Lister) (refused int) {
	t.Helper()
	const keys, ended, soon = 200, 2, time.Minute
	key := func(i int) string { return fmt.Sprint("k", i) }
	ctx, cancel := context.WithCancel(t.Context())
	holder := LockerOn(t, open(t, new(Line)))
	leases := make([]*core.Lease, keys)
	for i := range leases {
		Until(t, "the lock is had", func() (had bool) {
			var err error
			if leases[i], err = holder.Lock(ctx, key(i)); err != nil && !errors.Is(err, core.ErrUnavailable) { // the machine may be slow
				t.Fatal(err)
			}
			return err == nil
		})
	}
	var lines []*Line
	for range ended {
		line := new(Line)
		lines = append(lines, line)
		l := LockerOn(t, open(t, line))
		for i := range keys {
			go func() {
				for again := true; again; { // the machine may be slow
					_, err := l.Lock(ctx, key(i), core.Wait(time.Hour))
					again = errors.Is(err, core.ErrUnavailable) && ctx.Err() == nil
				}
			}()
		}
	}
	t.Cleanup(func() { // before the lockers are closed
		cancel()
		for _, line := range lines {
			line.Mend()
		}
	})
	if len(looks) == 0 {
		looks = []driver.Lister{open(t, new(Line)).(driver.Lister)}
	}
	for i := range keys {
		for _, look := range looks {
			Until(t, fmt.Sprintf("%d processes wait for %s", ended, key(i)), func() bool {
				view, err := look.Look(ctx, key(i))
				n := 0
				for range view.Waiting.All() {
					n++
				}
				return err == nil && n == ended
			})
		}
	}
	asks := LockerOn(t, open(t, new(Line)))
	for _, line := range lines {
		line.Cut()
	}
	for _, look := range looks { // a server that answers has found the connections closed
		if _, err := look.Look(ctx, key(0)); err != nil {
			t.Fatal(err)
		}
	}
	released, had := time.Now(), make([]bool, keys)
	refused = each(had, func(i int) bool {
		if err := leases[i].Release(ctx); err != nil && !errors.Is(err, core.ErrUnavailable) {
			t.Errorf("Release(%q): %v", key(i), err)
		}
		return askOnce(t, asks, key(i))
	})
	t.Logf("%d of %d are refused directly after the release", refused, keys)
	for before, n := refused, refused; n > 0; before = n {
		<-time.After(50 * time.Millisecond)
		if stays {
			n = each(had, func(i int) bool { return askOnce(t, asks, key(i)) })
		} else {
			t.Run("round", func(t *testing.T) {
				l := LockerOn(t, open(t, new(Line)))
				n = each(had, func(i int) bool { return askOnce(t, l, key(i)) })
			})
		}
		took := time.Since(released)
		if n < before {
			t.Logf("%d of %d are refused %v after the release", n, keys, took.Round(10*time.Millisecond))
		}
		if n > 0 && took > soon {
			t.Errorf("%d of %d locks are kept %v after the release; want none", n, keys, took)
			break
		}
	}
	return refused
}

// each calls f at the same time for all that have not had their locks, and returns how many have none then.
func each(had []bool, f func(i int) bool) (without int) {
	var all sync.WaitGroup
	for i := range had {
		if !had[i] {
			all.Go(func() { had[i] = f(i) })
		}
	}
	all.Wait()
	for _, has := range had {
		if !has {
			without++
		}
	}
	return without
}

// askOnce reports whether a caller that asks once has a lock, and releases it.
func askOnce(tb testing.TB, l *core.Locker, key string) bool {
	lease, err := l.TryLock(tb.Context(), key)
	had := err == nil
	if had {
		err = lease.Release(tb.Context())
	}
	switch {
	case err == nil, errors.Is(err, core.ErrHeld), errors.Is(err, core.ErrUnavailable): // the machine may be slow
	default:
		tb.Errorf("a caller asks once for %s: %v; want the lock, or ErrHeld", key, err)
	}
	return had
}
