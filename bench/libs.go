package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	bsm "github.com/bsm/redislock"
	rs "github.com/go-redsync/redsync/v4"
	"github.com/go-redsync/redsync/v4/redis/goredis/v9"
	"github.com/redis/go-redis/v9"
	"github.com/redis/rueidis"
	rueidislocks "github.com/redis/rueidis/rueidislock"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/redisstore"
)

// locks is a library as a workload sees it. g is the goroutine that calls, k the
// number of the key. The result of lock goes to unlock; it is an any because a
// pointer in an interface costs no allocation, and allocations are measured.
type locks interface {
	lock(ctx context.Context, g, k int) (held any, err error)
	unlock(g, k int, held any) error
}

// watchdog is a library that leaves renewing to the application. renewAll returns
// how many could not be renewed.
type watchdog interface {
	renewAll(ctx context.Context, held []any) int
}

// watcher is a library that renews by itself and knows its losses.
type watcher interface {
	lost(k int, held any) bool
}

// watchdogs is how many goroutines the played application renews with.
const watchdogs = 32

// open opens the cell's library on the cell's server.
func open(c *child) (locks, error) {
	rdb := redis.NewClient(&redis.Options{Addr: c.Addr, ContextTimeoutEnabled: true})
	switch c.Library {
	case interlock:
		locker, err := newLocker(rdb, c.row.lease)
		return &ourLocks{locker, c.keys}, err
	case redsync:
		return &redsyncLocks{rs.New(goredis.NewPool(rdb)), c.keys, c.row.lease}, nil
	case redislock:
		return &bsmLocks{bsm.New(rdb), c.keys, c.row.lease}, nil
	case rueidislock:
		return newRueidis(c)
	case channel:
		return newChannels(c.keys), nil
	case none:
		return noLocks{}, nil
	}
	return nil, fmt.Errorf("no library %q", c.Library)
}

// ourLocks is Interlock, as a user has it who changes nothing.
type ourLocks struct {
	locker *core.Locker
	keys   []string
}

func newLocker(rdb *redis.Client, lease time.Duration) (*core.Locker, error) {
	store, err := redisstore.New(rdb, redisstore.Logger(slog.New(slog.DiscardHandler)))
	if err != nil {
		return nil, err
	}
	return core.New(store, core.Watchdog(lease))
}

// lock returns no lease in its interface when there is an error: a nil pointer in
// one is not nil.
func (l *ourLocks) lock(ctx context.Context, _, k int) (any, error) {
	lease, err := l.locker.Lock(ctx, l.keys[k])
	if err != nil {
		return nil, err
	}
	return lease, nil
}

func (l *ourLocks) unlock(_, _ int, held any) error {
	return held.(*core.Lease).Release(context.Background())
}

func (l *ourLocks) lost(_ int, held any) bool { return held.(*core.Lease).Err() != nil }

// redsyncLocks is redsync with its default pauses of 50 to 250 ms; only that it
// gives up after 32 tries is changed, since all others here wait.
type redsyncLocks struct {
	rs    *rs.Redsync
	keys  []string
	lease time.Duration
}

func (l *redsyncLocks) lock(ctx context.Context, _, k int) (any, error) {
	m := l.rs.NewMutex(l.keys[k], rs.WithExpiry(l.lease), rs.WithTries(1<<30))
	if err := m.LockContext(ctx); err != nil {
		return nil, err
	}
	return m, nil
}

func (l *redsyncLocks) unlock(_, _ int, held any) error {
	_, err := held.(*rs.Mutex).UnlockContext(context.Background())
	return err
}

func (l *redsyncLocks) renewAll(ctx context.Context, held []any) int {
	return countFailed(len(held), func(i int) error {
		ok, err := held[i].(*rs.Mutex).ExtendContext(ctx)
		if err == nil && !ok {
			err = errNotRenewed
		}
		return err
	})
}

// errNotRenewed says that the library renewed nothing and called that no error.
var errNotRenewed = errors.New("not renewed")

// countFailed calls f for all numbers below n and counts the errors.
func countFailed(n int, f func(i int) error) int {
	var failed atomic.Int64
	spread(n, watchdogs, func(i int) {
		if f(i) != nil {
			failed.Add(1)
		}
	})
	return int(failed.Load())
}

// bsmLocks is redislock with the retries of its README, every 100 ms.
type bsmLocks struct {
	client *bsm.Client
	keys   []string
	lease  time.Duration
}

func (l *bsmLocks) lock(ctx context.Context, _, k int) (any, error) {
	lock, err := l.client.Obtain(ctx, l.keys[k], l.lease,
		&bsm.Options{RetryStrategy: bsm.LinearBackoff(100 * time.Millisecond)})
	if err != nil {
		return nil, err
	}
	return lock, nil
}

func (l *bsmLocks) unlock(_, _ int, held any) error {
	return held.(*bsm.Lock).Release(context.Background())
}

func (l *bsmLocks) renewAll(ctx context.Context, held []any) int {
	return countFailed(len(held), func(i int) error { return held[i].(*bsm.Lock).Refresh(ctx, l.lease, nil) })
}

// rueidisLocks is rueidislock for a single server: one key instead of a majority
// of three, and NOLOOP, which its README recommends for Redis from 7.0.5.
type rueidisLocks struct {
	locker rueidislocks.Locker
	keys   []string
	leases []context.Context // of the held workloads, by key
}

func newRueidis(c *child) (*rueidisLocks, error) {
	locker, err := rueidislocks.NewLocker(rueidislocks.LockerOption{
		ClientOption:   rueidis.ClientOption{InitAddress: []string{c.Addr}},
		KeyMajority:    1,
		KeyValidity:    c.row.lease,
		NoLoopTracking: true,
	})
	return &rueidisLocks{locker, c.keys, make([]context.Context, len(c.keys))}, err
}

func (l *rueidisLocks) lock(ctx context.Context, _, k int) (any, error) {
	lease, cancel, err := l.locker.WithContext(ctx, l.keys[k])
	if err != nil {
		return nil, err
	}
	l.leases[k] = lease //nolint:fatcontext // kept, not derived from; who writes it holds the lock
	return cancel, nil
}

func (l *rueidisLocks) unlock(_, _ int, held any) error {
	held.(context.CancelFunc)()
	return nil
}

func (l *rueidisLocks) lost(k int, _ any) bool { return l.leases[k].Err() != nil }

// channels are channels of one token, a lock as the language has it: what there
// is to reach within a process.
type channels []chan struct{}

func newChannels(keys []string) channels {
	all := make(channels, len(keys))
	for i := range all {
		all[i] = make(chan struct{}, 1)
	}
	return all
}

func (l channels) lock(ctx context.Context, _, k int) (any, error) {
	select {
	case l[k] <- struct{}{}:
		return nil, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (l channels) unlock(_, k int, _ any) error {
	<-l[k]
	return nil
}

// none lets all goroutines in. It is in no row: the tests run it to see that the
// harness notices.
const none = "none"

type noLocks struct{}

func (noLocks) lock(context.Context, int, int) (any, error) { return nil, nil }
func (noLocks) unlock(int, int, any) error                  { return nil }
