package pgstore

import (
	"context"
	"iter"
	"sync"
	"time"

	"github.com/interlock-go/interlock/core/driver"
	"github.com/interlock-go/interlock/core/internal/pglock"
)

var (
	_ driver.Store = (*Store)(nil)
	_ driver.Turns = (*Store)(nil)
)

// locks is the part of a store that keeps locks. It begins with the first of them.
type locks struct {
	mu     sync.Mutex
	store  *pglock.Store
	closed bool
}

// lock returns the part of the store that keeps locks.
func (s *Store) lock() *pglock.Store {
	l := &s.locks
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.store == nil {
		config := pglock.Config{
			Table: s.schema + s.prefix + "lock", Timeout: s.timeout, Log: s.log, Keep: s.keep, Sweep: s.sweep,
		}
		if s.listener != nil {
			config.Listen, config.Announce = s.ears, s.notify
		}
		l.store = pglock.New(s.records, config)
		if l.closed {
			_ = l.store.Close()
		}
	}
	return l.store
}

func (l *locks) close() error {
	l.mu.Lock()
	l.closed = true
	store := l.store
	l.mu.Unlock() // a release does not wait until the store is closed
	if store == nil {
		return nil
	}
	return store.Close()
}

// Acquire implements [driver.Store].
func (s *Store) Acquire(ctx context.Context, ask driver.AcquireRequest) (driver.Reply, error) {
	return s.lock().Acquire(ctx, ask)
}

// Renew implements [driver.Store]. It renews leases in one statement.
func (s *Store) Renew(ctx context.Context, batch []driver.Renewal, done func(i int, contended bool, err error)) {
	s.lock().Renew(ctx, batch, done)
}

// Release implements [driver.Store].
func (s *Store) Release(ctx context.Context, ask driver.ReleaseRequest) (found driver.Waiting, err error) {
	return s.lock().Release(ctx, ask)
}

// Calls implements [driver.Store].
func (s *Store) Calls(id string, hear func(driver.Call)) (stop func()) {
	return s.lock().Calls(id, hear)
}

// RoundTrip implements [driver.Turns]. Where the processes look for releases, a part of the
// pause between two looks is in it.
func (s *Store) RoundTrip() time.Duration { return s.lock().RoundTrip() }

// Decline implements [driver.Turns].
func (s *Store) Decline(ctx context.Context, key, waiter string) error {
	return s.lock().Decline(ctx, key, waiter)
}

// Stand implements [driver.Turns].
func (s *Store) Stand(ctx context.Context, ask driver.AcquireRequest) (driver.Reply, error) {
	return s.lock().Stand(ctx, ask)
}

// Serves implements [driver.Limited]: locks are offered where processes listen ([Listen]).
func (s *Store) Serves(h driver.Hold) error { return s.lock().Serves(h) }

// Space implements [driver.Turns]. It is the name of the table, without a schema: another store may have
// the same table by its search_path.
func (s *Store) Space() string { return s.lock().Space() }

// Look returns the state of the lock of a key, for package fleet.
func (s *Store) Look(ctx context.Context, key string) (driver.View, error) {
	return s.lock().Look(ctx, key)
}

// List goes through the locks with keys that begin with a text, for package fleet.
func (s *Store) List(ctx context.Context, begin string, fits func(key string) bool) iter.Seq2[driver.View, error] {
	return s.lock().List(ctx, begin, fits)
}
