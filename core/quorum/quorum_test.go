//go:build integration

package quorum_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"go.uber.org/goleak"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/quorum"
	"github.com/interlock-go/interlock/internal/redistest"
)

func TestMain(m *testing.M) {
	// A pool of go-redis that was refused looks once a second whether its server
	// is back, and notices that it was closed no sooner.
	redistest.Main(m, goleak.IgnoreAnyFunction("github.com/redis/go-redis/v9/internal/pool.(*ConnPool).tryDial"))
}

// maxTTL is the default of the option.
const maxTTL = 30 * time.Second

// group is a quorum of real servers that have kept their votes, each reached through a
// wire of this process.
type group struct {
	servers []*redistest.Server
	wires   []*wire
	admins  []*redis.Client
}

func newGroup(tb testing.TB, n int, opts ...redistest.Option) *group {
	tb.Helper()
	g := &group{servers: redistest.Independent(tb, n, opts...)}
	for _, srv := range g.servers {
		srv.Vouch(tb, "interlock", maxTTL)
		g.wires = append(g.wires, newWire())
		g.admins = append(g.admins, srv.Client(tb, func(o *redis.Options) { o.MaxRetries = -1 }))
	}
	return g
}

// store makes what a process has: a client of each node, and a store.
func (g *group) store(tb testing.TB, opts ...quorum.Option) *quorum.Store {
	tb.Helper()
	nodes := make([]redis.UniversalClient, len(g.servers))
	for i, srv := range g.servers {
		nodes[i] = srv.Client(tb, g.wires[i].through)
	}
	opts = append([]quorum.Option{quorum.Logger(slog.New(slog.DiscardHandler))}, opts...)
	s, err := quorum.New(nodes, opts...)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if err := s.Close(); err != nil && !errors.Is(err, redis.ErrClosed) {
			tb.Errorf("closing the store: %v", err)
		}
	})
	return s
}

func (g *group) locker(tb testing.TB, opts ...core.LockerOption) *core.Locker {
	tb.Helper()
	return lockerOn(tb, g.store(tb), opts...)
}

func lockerOn(tb testing.TB, s core.Store, opts ...core.LockerOption) *core.Locker {
	tb.Helper()
	l, err := core.New(s, opts...)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		if err := l.Close(ctx); err != nil {
			tb.Errorf("closing the locker: %v", err)
		}
	})
	return l
}

// holders are the nodes that have a holder of a key.
func (g *group) holders(ctx context.Context, key string) (nodes []int) {
	for i, rdb := range g.admins {
		if n, err := rdb.Exists(ctx, "interlock:{"+key+"}").Result(); err == nil && n > 0 {
			nodes = append(nodes, i)
		}
	}
	return nodes
}

// wantHeld waits until a key is held on all nodes: a lock comes with a majority.
func (g *group) wantHeld(tb testing.TB, key string) {
	tb.Helper()
	redistest.Eventually(tb, 20*time.Second, func(ctx context.Context) error {
		if n := g.holders(ctx, key); len(n) != len(g.servers) {
			return fmt.Errorf("held on %v", n)
		}
		return nil
	})
}

// wantGone waits until no lock is left on any node that answers.
func (g *group) wantGone(tb testing.TB) {
	tb.Helper()
	redistest.Eventually(tb, 20*time.Second, func(ctx context.Context) error {
		for i, rdb := range g.admins {
			keys, err := rdb.Keys(ctx, "interlock:{*}").Result()
			if err != nil {
				return fmt.Errorf("node %d: %w", i, err)
			}
			if len(keys) > 0 {
				return fmt.Errorf("orphaned on node %d: %v", i, keys)
			}
		}
		return nil
	})
}

// lock takes a lock. That too few nodes answer in their time happens on a busy machine, and
// is no failure if it works later.
func lock(tb testing.TB, l *core.Locker, key string, opts ...core.Option) *core.Lease {
	tb.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	tb.Cleanup(cancel) // the lease's context ends with it
	for {
		lease, err := l.Lock(ctx, key, opts...)
		switch {
		case err == nil:
			return lease
		case !errors.Is(err, core.ErrUnavailable) || ctx.Err() != nil:
			tb.Fatalf("Lock(%q): %v", key, err)
		}
		tb.Logf("Lock(%q) again: %v", key, err)
		time.Sleep(10 * time.Millisecond)
	}
}

// release gives a lock back. If nodes do not answer in their time, that happens in the
// background; wantGone waits for it.
func release(tb testing.TB, lease *core.Lease) {
	tb.Helper()
	switch err := lease.Release(context.Background()); {
	case errors.Is(err, core.ErrUnavailable) && !errors.Is(err, core.ErrLost):
		tb.Logf("Release(%q): %v", lease.Key(), err)
	case err != nil:
		tb.Errorf("Release(%q): %v", lease.Key(), err)
	}
}

// checked asks whether a lease is good, again while too few nodes answer in their time.
func checked(lease *core.Lease) (err error) {
	for end := time.Now().Add(20 * time.Second); ; {
		err = lease.Check(context.Background())
		if !errors.Is(err, core.ErrUnavailable) || errors.Is(err, core.ErrLost) || time.Now().After(end) {
			return err
		}
	}
}

// wantAll waits until a locker reaches all nodes, or all that have a vote: go-redis
// dials a server that refused it once a second.
func (g *group) wantAll(t *testing.T, l *core.Locker) {
	t.Helper()
	n := 0
	redistest.Eventually(t, 20*time.Second, func(ctx context.Context) error {
		n++
		lease := lock(t, l, fmt.Sprint("all", n))
		defer release(t, lease)
		if on := g.holders(ctx, lease.Key()); len(on) < 5 {
			return fmt.Errorf("held on %v", on)
		}
		return nil
	})
}
