package core_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/driver"
	"github.com/interlock-go/interlock/core/memstore"
)

// Of two ways to hold a lock in one call neither can be meant.
func TestOneCallHoldsALockInOneWay(t *testing.T) {
	l := newLocker(t, memstore.New())
	ctx := t.Context()
	nothing := func(context.Context) error { t.Error("it runs"); return nil }
	for name, refused := range map[string]func() (*core.Lease, error){
		"Permit with Permits":     func() (*core.Lease, error) { return l.Permit(ctx, "k", 1, core.Permits(5)) },
		"TryPermit with Shared":   func() (*core.Lease, error) { return l.TryPermit(ctx, "k", 1, core.Shared()) },
		"LockShared with Permits": func() (*core.Lease, error) { return l.LockShared(ctx, "k", core.Permits(1)) },
		"Lock with both":          func() (*core.Lease, error) { return l.Lock(ctx, "k", core.Permits(1), core.Shared()) },
		"Share with Permits":      func() (*core.Lease, error) { return nil, guardError(l, core.Shared(), core.Permits(1)) },
		"Lead with Shared":        func() (*core.Lease, error) { return nil, core.Lead(ctx, l, "k", nothing, core.Shared()) },
		"Lead with Permits":       func() (*core.Lease, error) { return nil, core.Lead(ctx, l, "k", nothing, core.Permits(3)) },
	} {
		t.Run(name, func(t *testing.T) {
			lease, err := refused()
			wantErr(t, err, core.ErrConfig)
			if lease != nil {
				t.Error("it holds the lock")
			}
		})
	}
	lease, err := l.Permit(ctx, "k", 5, core.Permits(5)) // says the same twice
	wantErr(t, err, nil)
	wantErr(t, lease.Release(ctx), nil)
}

// exclusiveOnly is a store without places, and with leases of at most a minute.
type exclusiveOnly struct{ *memstore.Store }

func (exclusiveOnly) Serves(h driver.Hold) error {
	if h.Kind.Place() || h.TTL > time.Minute {
		return fmt.Errorf("%w: kind %d, %v", driver.ErrConfig, h.Kind, h.TTL)
	}
	return nil
}

func (s exclusiveOnly) Acquire(ctx context.Context, ask driver.AcquireRequest) (driver.Reply, error) {
	if err := s.Serves(driver.Hold{Kind: ask.Kind, TTL: ask.TTL}); err != nil {
		time.Sleep(10 * time.Millisecond)
		return driver.Reply{}, err
	}
	return s.Store.Acquire(ctx, ask)
}

// A kind of lock that a store never serves is a mistake of its caller. Treated as an
// outage it would be tried again, or handlers would run without their lock. Later callers
// with another kind of request do not get the error.
func TestWhatAStoreNeverServesIsNoOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLocker(t, exclusiveOnly{memstore.New()})
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		never := []func() (*core.Lease, error){
			func() (*core.Lease, error) { return l.LockShared(ctx, "k") },
			func() (*core.Lease, error) { return l.Permit(ctx, "k", 2) },
			func() (*core.Lease, error) { return l.Lock(ctx, "k", core.TTL(time.Hour)) },
			func() (*core.Lease, error) {
				nothing := func(context.Context) error { t.Error("it runs"); return nil }
				return nil, core.Lead(ctx, l, "k", nothing, core.Watchdog(time.Hour))
			},
		}
		for i, call := range never {
			refused := make(chan error)
			go func() {
				_, err := call()
				refused <- err
			}()
			synctest.Wait() // it asks
			lease, err := l.Lock(t.Context(), "k")
			wantErr(t, err, nil)
			wantErr(t, lease.Release(t.Context()), nil)
			if err := <-refused; !errors.Is(err, core.ErrConfig) || errors.Is(err, core.ErrUnavailable) {
				t.Errorf("call %d: %v; want ErrConfig, and not ErrUnavailable", i, err)
			}
		}
	})
}

func TestNothingIsMadeOfAStoreThatItNeverServes(t *testing.T) {
	store := exclusiveOnly{memstore.New()}
	for _, opt := range []core.LockerOption{core.Watchdog(2 * time.Minute), core.TTL(2 * time.Minute)} {
		_, err := core.New(store, opt)
		wantErr(t, err, core.ErrConfig)
	}
	l := newLocker(t, store)
	for _, opt := range []core.GuardOption{
		core.Watchdog(2 * time.Minute), core.TTL(2 * time.Minute), core.Shared(), core.Permits(3), core.ShareReads(),
	} {
		wantErr(t, guardError(l, opt), core.ErrConfig)
	}
	wantErr(t, guardError(l, core.TTL(time.Minute)), nil)
}

func guardError(l *core.Locker, opts ...core.GuardOption) error {
	_, err := core.NewGuard(l, "k", opts...)
	return err
}
