// Package freestore is a store whose locks are always free, for tests of what a
// lock is taken for rather than of the lock: they are fast, and need no Redis.
package freestore

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/driver"
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

// Acquire implements driver.Store.
func (s *store) Acquire(context.Context, driver.AcquireRequest) (driver.Reply, error) {
	return driver.Reply{Granted: true, Token: s.tokens.Add(1), Sent: time.Now()}, nil
}

// Renew implements driver.Store.
func (s *store) Renew(_ context.Context, batch []driver.Renewal, done func(int, bool, error)) {
	for i := range batch {
		done(i, false, nil)
	}
}

// Release implements driver.Store.
func (s *store) Release(context.Context, driver.ReleaseRequest) error { return nil }

// Watch implements driver.Store.
func (s *store) Watch(string, time.Time, func(driver.Signal)) (stop func()) { return func() {} }
