// Package freestore is a store whose locks are always free, for tests of what a
// lock is taken for rather than of the lock: they are fast, and need no Redis.
package freestore

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/interlock-go/interlock/core"
)

// Locker returns a locker on such a store. It is closed when the test ends.
func Locker(tb testing.TB) *core.Locker {
	tb.Helper()
	locker, err := core.New(&store{})
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if err := locker.Close(context.Background()); err != nil {
			tb.Error(err)
		}
	})
	return locker
}

type store struct{ tokens atomic.Int64 }

// Acquire implements core.Store.
func (s *store) Acquire(context.Context, core.AcquireRequest) (core.Reply, error) {
	return core.Reply{Granted: true, Token: s.tokens.Add(1), Sent: time.Now()}, nil
}

// Renew implements core.Store.
func (s *store) Renew(_ context.Context, batch []core.Renewal, done func(int, bool, error)) {
	for i := range batch {
		done(i, false, nil)
	}
}

// Release implements core.Store.
func (s *store) Release(context.Context, core.ReleaseRequest) error { return nil }

// Watch implements core.Store.
func (s *store) Watch(string, time.Time, func(core.Signal)) (stop func()) { return func() {} }
