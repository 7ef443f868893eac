// Package freestore is a store with locks that are always free and cost nothing, to measure
// the code above a store alone. Other tests use core/memstore.
package freestore

import (
	"context"
	"testing"
	"time"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/driver"
)

// Locker returns a locker on such a store. It is closed when the test ends.
func Locker(tb testing.TB, opts ...core.LockerOption) *core.Locker {
	tb.Helper()
	locker, err := core.New(store{}, opts...)
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

type store struct{}

// Acquire implements driver.Store.
func (store) Acquire(context.Context, driver.AcquireRequest) (driver.Reply, error) {
	return driver.Reply{Granted: true, Token: 1, Sent: time.Now()}, nil
}

// Renew implements driver.Store.
func (store) Renew(_ context.Context, batch []driver.Renewal, done func(int, bool, error)) {
	for i := range batch {
		done(i, false, nil)
	}
}

// Release implements driver.Store.
func (store) Release(context.Context, driver.ReleaseRequest) (driver.Waiting, error) {
	return driver.Waiting{}, nil
}

// Calls implements driver.Store.
func (store) Calls(string, func(driver.Call)) (stop func()) { return func() {} }
