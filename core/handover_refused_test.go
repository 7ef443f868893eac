package core_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/driver"
	"github.com/interlock-go/interlock/core/memstore"
)

// A server that says that it does not move the lock, as for a missing right or a full disk, leaves the
// lease as it was.
func TestAHandOverThatTheStoreRefusesLeavesTheLease(t *testing.T) {
	refusals := map[string]memstore.Fault{
		"refused":     {Err: errors.Join(driver.ErrUnavailable, driver.ErrRefused)},
		"not ready":   {Err: driver.ErrNotReady},
		"unreachable": memstore.Unreachable,
	}
	kinds := map[string][]core.Option{
		"lock": nil, "permit": {core.Permits(1)}, "fixed": {core.TTL(10 * time.Minute)}, "attentive": {core.Attentive()},
	}
	for name, fault := range refusals {
		for kind, opts := range kinds {
			t.Run(name+" "+kind, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					s := newStore()
					web, worker := watched(t, s), watched(t, s)
					lease := held(t, web, t.Context(), "k", opts...)
					next := make(chan *core.Lease)
					go func() { next <- held(t, web, t.Context(), "k", opts...) }()
					s.Intercept(moves(fault))
					for range 2 {
						ticket, err := lease.HandOver(t.Context(), time.Minute)
						wantErr(t, err, core.ErrUnavailable)
						if !ticket.IsZero() {
							t.Error("HandOver returned a ticket together with an error")
						}
						time.Sleep(2 * time.Minute) // the watchdog renews
						if err := errors.Join(lease.Err(), lease.Check(t.Context()), lease.Context().Err()); err != nil {
							t.Fatalf("the lease ended: %v; want it as it was", err)
						}
						_, err = worker.TryLock(t.Context(), "k", opts...)
						wantErr(t, err, core.ErrHeld)
					}
					s.Intercept(nil)
					ticket := handOver(t, lease, time.Minute)
					wantErr(t, lease.Err(), core.ErrHandedOver)
					release(t, lease)
					release(t, takeOver(t, worker, ticket))
					release(t, <-next)
					if n := core.Orphans(web); n != 0 {
						t.Errorf("the reaper looks after %d owners, want none", n)
					}
				})
			})
		}
	}
}

// A script that is refused in its middle may have removed the lock.
func TestAHandOverThatIsRefusedHalfWayEndsTheLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStore()
		web, other := watched(t, s), watched(t, s)
		lease := held(t, web, t.Context(), "k")
		s.Intercept(func(r memstore.Request) memstore.Fault {
			if r.From == "" {
				return memstore.Fault{}
			}
			s.Expire("k")
			return memstore.Unreachable
		})
		_, err := lease.HandOver(t.Context(), time.Minute)
		wantErr(t, err, core.ErrUnavailable)
		wantErr(t, lease.Err(), core.ErrReleased)
		if lease.Context().Err() == nil {
			t.Error("the context goes on, and the lock does not")
		}
		s.Intercept(nil)
		release(t, held(t, other, t.Context(), "k"))
	})
}

// The handler returns, or its process stops, while the store refuses.
func TestAHandOverThatIsRefusedMeetsTheEndOfItsLease(t *testing.T) {
	for name, end := range map[string]func(*core.Locker, *core.Lease) error{
		"release": func(_ *core.Locker, lease *core.Lease) error {
			if err := lease.Release(context.Background()); !errors.Is(err, core.ErrUnavailable) {
				return err
			}
			return nil
		},
		"close": func(l *core.Locker, _ *core.Lease) error {
			ctx, cancel := context.WithCancel(context.Background())
			cancel()
			if err := l.Close(ctx); !errors.Is(err, context.Canceled) {
				return err
			}
			return nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newStore()
				web, other := watched(t, s), watched(t, s)
				lease := held(t, web, t.Context(), "k")
				s.Intercept(moves(memstore.Fault{Err: driver.ErrUnavailable, Before: time.Second}))
				handed := make(chan error)
				go func() {
					_, err := lease.HandOver(context.Background(), time.Minute)
					handed <- err
				}()
				synctest.Wait()
				ended := make(chan error)
				go func() { ended <- end(web, lease) }()
				wantErr(t, <-handed, core.ErrUnavailable)
				if err := <-ended; err != nil {
					t.Error(err)
				}
				if lease.Err() == nil || lease.Context().Err() == nil {
					t.Errorf("the lease goes on: %v, context %v; want both ended", lease.Err(), lease.Context().Err())
				}
				s.Intercept(nil)
				begin := time.Now()
				release(t, held(t, other, t.Context(), "k"))
				if d := time.Since(begin); d > 31*time.Second {
					t.Errorf("the lock was free after %v, want at most its lease", d)
				}
			})
		})
	}
}
