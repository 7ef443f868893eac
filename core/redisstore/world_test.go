//go:build integration

package redisstore_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/driver"
	"github.com/interlock-go/interlock/core/redisstore"
	"github.com/interlock-go/interlock/internal/pace"
	"github.com/interlock-go/interlock/internal/redistest"
)

// world is a server as a test sees it.
type world struct {
	*redistest.Server
	pace.Pace
	t      testing.TB
	rdb    *redis.Client // the test's own
	prefix string        // of the names of its stores
}

// common is the server of all tests, with names for this one.
func common(t testing.TB) *world {
	t.Helper()
	srv, name := redistest.Common(t)
	return worldOf(t, srv, name)
}

// alone is a server that this test may pause, kill and reconfigure. The test may also
// count its commands.
func alone(t testing.TB, args ...string) *world {
	t.Helper()
	return worldOf(t, redistest.Start(t, redistest.Args(args...)), "interlock")
}

func worldOf(t testing.TB, srv *redistest.Server, prefix string) *world {
	t.Helper()
	rdb := srv.Client(t)
	return &world{srv, pace.Of(t, func() error { return rdb.Ping(t.Context()).Err() }), t, rdb, prefix}
}

// store makes a store with a separate client, like each process. It waits for an answer
// as long as the test does.
func (w *world) store(change ...func(*redis.Options)) *redisstore.Store {
	w.t.Helper()
	return w.over(w.Client(w.t, change...))
}

func (w *world) over(rdb redis.UniversalClient, opts ...redisstore.Option) *redisstore.Store {
	w.t.Helper()
	opts = append([]redisstore.Option{redisstore.Prefix(w.prefix), redisstore.Timeout(w.Patience())}, opts...)
	s, err := redisstore.New(rdb, opts...)
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() {
		// A connection that a test has cut is closed already.
		if err := s.Close(); err != nil && !errors.Is(err, net.ErrClosed) {
			w.t.Errorf("closing the store: %v", err)
		}
	})
	return s
}

// locker makes a locker on a store. Its leases do not end during the test.
func (w *world) locker(s *redisstore.Store, opts ...core.LockerOption) *core.Locker {
	w.t.Helper()
	l, err := core.New(s, append([]core.LockerOption{core.Watchdog(w.Holds())}, opts...)...)
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), w.Patience())
		defer cancel()
		if err := l.Close(ctx); err != nil {
			w.t.Errorf("closing the locker: %v", err)
		}
	})
	return l
}

// process makes a locker with a separate client and store.
func (w *world) process(opts ...core.LockerOption) *core.Locker {
	w.t.Helper()
	return w.locker(w.store(), opts...)
}

// bounded is a context for waits that have to end.
func (w *world) bounded() context.Context {
	ctx, cancel := context.WithTimeout(w.t.Context(), w.Patience())
	w.t.Cleanup(cancel)
	return ctx
}

func (w *world) lock(l *core.Locker, key string, opts ...core.Option) *core.Lease {
	w.t.Helper()
	lease, err := l.Lock(w.bounded(), key, opts...)
	if err != nil {
		w.t.Fatalf("Lock(%q): %v", key, err)
	}
	return lease
}

// release gives a lock up. A locker waits a second for the answer, and then goes on with
// it by itself: that is no error of a machine that stood still.
func (w *world) release(lease *core.Lease) {
	w.t.Helper()
	if err := lease.Release(context.Background()); err != nil && (!errors.Is(err, core.ErrUnavailable) || errors.Is(err, core.ErrLost)) {
		w.t.Errorf("Release(%q): %v", lease.Key(), err)
	}
}

// ended waits for the end of a lease's context and returns its cause.
func (w *world) ended(lease *core.Lease) error {
	w.t.Helper()
	select {
	case <-lease.Context().Done():
		return context.Cause(lease.Context())
	case <-time.After(w.Patience()):
		w.t.Fatal("the context has not ended")
		return nil
	}
}

// soon waits until something is true.
func (w *world) soon(what string, is func(context.Context) bool) {
	w.t.Helper()
	redistest.Eventually(w.t, w.Patience(), func(ctx context.Context) error {
		if !is(ctx) {
			return errors.New("not yet: " + what)
		}
		return nil
	})
}

// gone waits until no lock is left. Fences may be.
func (w *world) gone() {
	w.t.Helper()
	w.soon("no lock is left", func(ctx context.Context) bool {
		keys, err := w.rdb.Keys(ctx, w.prefix+":{*}").Result()
		return err == nil && len(keys) == 0
	})
}

// name is the name of a lock in Redis, and record the name of a record.
func (w *world) name(key string) string { return w.prefix + ":{" + key + "}" }

func (w *world) record(id string) string { return w.prefix + ":idem:{" + id + "}" }

// called waits until so many lockers listen to calls.
func (w *world) called(n int64) {
	w.t.Helper()
	w.soon(fmt.Sprintf("%d lockers listen", n), func(ctx context.Context) bool {
		channels, err := w.rdb.PubSubChannels(ctx, w.prefix+":wanted:*").Result()
		if err != nil || len(channels) == 0 {
			return false
		}
		heard, err := w.rdb.PubSubNumSub(ctx, channels...).Result()
		var got int64
		for _, connections := range heard {
			got += connections
		}
		return err == nil && got == n
	})
}

// later does something in the background; the channel has how that ended.
func later(do func() error) <-chan error {
	done := make(chan error, 1)
	go func() { done <- do() }()
	return done
}

// pass locks and releases a key.
func pass(ctx context.Context, l *core.Locker, key string, opts ...core.Option) error {
	lease, err := l.Lock(ctx, key, opts...)
	if err == nil {
		err = lease.Release(ctx)
	}
	return err
}

// want waits for the outcome of a call under way, and requires that it has no error.
func (w *world) want(what string, done <-chan error) {
	w.t.Helper()
	select {
	case err := <-done:
		if err != nil {
			w.t.Errorf("%s: %v", what, err)
		}
	case <-time.After(w.Patience()):
		w.t.Fatalf("%s: no end", what)
	}
}

func wantErr(t testing.TB, err, want error) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Errorf("error is %v, want %v", err, want)
	}
}

// held is a request for a lock with a lease that does not end during the test.
func (w *world) held(key, owner string) driver.AcquireRequest {
	return driver.AcquireRequest{Key: key, Owner: owner, TTL: w.Holds()}
}

// acquire sends a request that must not fail.
func (w *world) acquire(s *redisstore.Store, ask driver.AcquireRequest) driver.Reply {
	w.t.Helper()
	rep, err := s.Acquire(w.t.Context(), ask)
	if err != nil {
		w.t.Fatalf("Acquire(%q, %q): %v", ask.Key, ask.Owner, err)
	}
	return rep
}

// take is acquire of a lock that must be granted.
func (w *world) take(s *redisstore.Store, ask driver.AcquireRequest) driver.Reply {
	w.t.Helper()
	rep := w.acquire(s, ask)
	if !rep.Granted {
		w.t.Fatalf("Acquire(%q, %q): held by %q", ask.Key, ask.Owner, rep.Holder)
	}
	return rep
}

func (w *world) renew(s *redisstore.Store, key, owner string) (err error) {
	s.Renew(w.t.Context(), []driver.Renewal{{Key: key, Owner: owner, TTL: w.Holds()}}, func(_ int, _ bool, e error) { err = e })
	return err
}

func (w *world) free(s *redisstore.Store, key, owner string) error {
	_, err := s.Release(w.t.Context(), driver.ReleaseRequest{Key: key, Owner: owner, TTL: w.Holds(), Deadline: w.deadline()})
	return err
}

// deadline is until when a request may be sent again.
func (w *world) deadline() time.Time { return time.Now().Add(w.Patience()) }

// together has n callers ask for the locks k0, k1 and so on while the server is paused, so
// that their requests meet, and returns their results.
func (w *world) together(s *redisstore.Store, n int) (replies []driver.Reply, errs []error) {
	w.t.Helper()
	replies, errs = make([]driver.Reply, n), make([]error, n)
	w.Pause(w.t)
	var asked atomic.Int64
	var all sync.WaitGroup
	for i := range n {
		all.Go(func() {
			asked.Add(1)
			replies[i], errs[i] = s.Acquire(w.t.Context(), w.held(fmt.Sprint("k", i), fmt.Sprint("owner:", i)))
		})
	}
	w.soon("all have asked", func(context.Context) bool { return asked.Load() == int64(n) })
	w.Resume(w.t)
	all.Wait()
	return replies, errs
}
