//go:build integration

package fleet_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/fleet"
	"github.com/interlock-go/interlock/core/redisstore"
	"github.com/interlock-go/interlock/internal/pace"
	"github.com/interlock-go/interlock/internal/redistest"
)

// world is one server, or a Cluster, and names that are the test's own.
type world struct {
	pace.Pace
	t      *testing.T
	rdb    redis.UniversalClient
	prefix string
}

// common is the server of all tests.
func common(t *testing.T) *world {
	t.Helper()
	srv, name := redistest.Common(t)
	return worldOf(t, srv.Client(t), name)
}

func worldOf(t *testing.T, rdb redis.UniversalClient, prefix string) *world {
	t.Helper()
	return &world{pace.Of(t, func() error { return rdb.Ping(t.Context()).Err() }), t, rdb, prefix}
}

// fleet makes a Fleet with a client of the world, or with the client that is given.
func (w *world) fleet(opts ...fleet.Option) *fleet.Fleet {
	w.t.Helper()
	return w.fleetOf(w.rdb, opts...)
}

func (w *world) fleetOf(rdb redis.UniversalClient, opts ...fleet.Option) *fleet.Fleet {
	w.t.Helper()
	opts = append([]fleet.Option{fleet.Prefix(w.prefix), fleet.Logger(slog.New(slog.DiscardHandler))}, opts...)
	f, err := fleet.New(rdb, opts...)
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { wantErr(w.t, f.Close(), nil) })
	return f
}

func (w *world) store() *redisstore.Store {
	w.t.Helper()
	s, err := redisstore.New(w.rdb, redisstore.Prefix(w.prefix), redisstore.Timeout(w.Patience()))
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { _ = s.Close() })
	return s
}

// process makes a locker with a separate store, like another process. Its leases do not
// end during the test.
func (w *world) process(opts ...core.LockerOption) *core.Locker {
	w.t.Helper()
	l, err := core.New(w.store(), append([]core.LockerOption{core.Watchdog(w.Holds())}, opts...)...)
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() {
		ctx, cancel := context.WithCancel(context.Background())
		cancel() // locks that a test leaves held are lost
		_ = l.Close(ctx)
	})
	return l
}

func (w *world) lock(l *core.Locker, key string, opts ...core.Option) *core.Lease {
	w.t.Helper()
	lease, err := l.Lock(w.t.Context(), key, opts...)
	if err != nil {
		w.t.Fatal(err)
	}
	return lease
}

// later takes a lock in the background.
func (w *world) later(ctx context.Context, l *core.Locker, key string, opts ...core.Option) <-chan *core.Lease {
	got := make(chan *core.Lease, 1)
	go func() {
		lease, err := l.Lock(ctx, key, opts...)
		if err != nil && ctx.Err() == nil {
			w.t.Error(err)
		}
		got <- lease
	}()
	return got
}

// lost waits until a check finds that a lease is lost.
func (w *world) lost(lease *core.Lease) {
	w.t.Helper()
	redistest.Eventually(w.t, w.Patience(), func(ctx context.Context) error {
		if err := lease.Check(ctx); err == nil || lease.Err() == nil {
			return fmt.Errorf("not lost yet: %w", err)
		}
		return nil
	})
	wantErr(w.t, lease.Err(), core.ErrLost)
}

// eventually waits until a lock in Redis is as it should be.
func (w *world) eventually(f *fleet.Fleet, key string, right func(l fleet.Lock) bool) (l fleet.Lock) {
	w.t.Helper()
	redistest.Eventually(w.t, w.Patience(), func(ctx context.Context) error {
		var err error
		if l, err = f.Inspect(ctx, key); err == nil && !right(l) {
			err = fmt.Errorf("%+v", l)
		}
		return err
	})
	return l
}

// check looks at the servers and a user, again if the machine stood still for longer than a
// Fleet waits for an answer.
func (w *world) check(f *fleet.Fleet, user string) (r fleet.Report) {
	w.t.Helper()
	redistest.Eventually(w.t, w.Patience(), func(ctx context.Context) (err error) {
		r, err = f.Check(ctx, user)
		return err
	})
	return r
}

// list collects the locks that fit a pattern, by key.
func (w *world) list(f *fleet.Fleet, pattern string) map[string]fleet.Lock {
	w.t.Helper()
	all := map[string]fleet.Lock{}
	for l, err := range f.Locks(w.t.Context(), pattern) {
		if err != nil {
			w.t.Fatal(err)
		}
		all[l.Key] = l
	}
	return all
}

// each does something on each master.
func (w *world) each(ctx context.Context, do func(ctx context.Context, node *redis.Client) error) error {
	if c, ok := w.rdb.(*redis.ClusterClient); ok {
		return c.ForEachMaster(ctx, do)
	}
	return do(ctx, w.rdb.(*redis.Client))
}

// looks waits until a lock has been read once more on some server.
func (w *world) looks() {
	w.t.Helper()
	read := func(ctx context.Context) (n int64, err error) {
		var all atomic.Int64
		err = w.each(ctx, func(ctx context.Context, node *redis.Client) error {
			stats, err := node.Info(ctx, "commandstats").Result()
			for _, command := range []string{"hgetall", "evalsha", "eval", "hmget"} {
				if _, rest, found := strings.Cut(stats, "cmdstat_"+command+":calls="); found {
					calls, _, _ := strings.Cut(rest, ",")
					n, _ := strconv.ParseInt(calls, 10, 64)
					all.Add(n)
				}
			}
			return err
		})
		return all.Load(), err
	}
	before, err := read(w.t.Context())
	if err != nil {
		w.t.Fatal(err)
	}
	redistest.Eventually(w.t, w.Patience(), func(ctx context.Context) error {
		now, err := read(ctx)
		if err == nil && now == before {
			err = errors.New("no lock is read")
		}
		return err
	})
}

// name is the name of a lock in Redis, and record the name of a record.
func (w *world) name(key string) string { return w.prefix + ":{" + key + "}" }

func (w *world) record(id string) string { return w.prefix + ":idem:{" + id + "}" }
