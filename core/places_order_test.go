package core_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/memstore"
)

// A place that this process is giving back must not refuse a caller of this process, in
// whichever order the answers come.
func TestATryIsNotRefusedByAPlaceThatItsProcessIsGivingBack(t *testing.T) {
	for name, faults := range map[string]map[memstore.Op]memstore.Fault{
		"the release arrives late":       {memstore.Release: {Before: 20 * time.Millisecond}},
		"its answer comes late":          {memstore.Release: {After: 20 * time.Millisecond}},
		"the refusal comes after it":     {memstore.Release: {Before: 20 * time.Millisecond}, memstore.Acquire: {After: 50 * time.Millisecond}},
		"all is slow":                    {memstore.Release: memstore.Delay(20 * time.Millisecond), memstore.Acquire: memstore.Delay(20 * time.Millisecond)},
		"the refusal comes with the end": {memstore.Release: {Before: 20 * time.Millisecond}, memstore.Acquire: {After: 20 * time.Millisecond}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store := memstore.New()
				l := newLocker(t, store)
				var leases []*core.Lease
				for range 2 {
					lease, err := l.Permit(t.Context(), "k", 2)
					wantErr(t, err, nil)
					leases = append(leases, lease)
				}
				store.Intercept(func(r memstore.Request) memstore.Fault { return faults[r.Op] })
				released := make(chan error)
				go func() { released <- leases[0].Release(t.Context()) }()
				synctest.Wait()
				tries := make(chan error, 3)
				for range cap(tries) {
					go func() {
						_, err := l.TryPermit(t.Context(), "k", 2)
						tries <- err
					}()
				}
				var granted, full int
				for range cap(tries) {
					if err := <-tries; err == nil {
						granted++
					} else {
						wantErr(t, err, core.ErrFull)
						full++
					}
				}
				wantErr(t, <-released, nil)
				if granted != 1 || full != 2 {
					t.Errorf("of one free permit: %d granted, %d refused", granted, full)
				}
				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				defer cancel()
				_ = l.Close(ctx)
			})
		})
	}
}

// Between the kinds the queue is first in, first out, too, also while the request of the
// first is on its way.
func TestAPermitDoesNotOvertakeTheExclusiveCallerBeforeIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memstore.New()
		l := newLocker(t, store)
		lease, err := l.Permit(t.Context(), "k", 1)
		wantErr(t, err, nil)
		store.Intercept(func(memstore.Request) memstore.Fault { return memstore.Delay(20 * time.Millisecond) })
		order := make(chan string, 2)
		take := func(name string, lock func() (*core.Lease, error)) {
			lease, err := lock()
			wantErr(t, err, nil)
			order <- name
			wantErr(t, lease.Release(t.Context()), nil)
		}
		go take("exclusive", func() (*core.Lease, error) { return l.Lock(t.Context(), "k") })
		synctest.Wait() // its request is on its way
		go take("permit", func() (*core.Lease, error) { return l.Permit(t.Context(), "k", 1) })
		synctest.Wait()
		wantErr(t, lease.Release(t.Context()), nil)
		if first, second := <-order, <-order; first != "exclusive" || second != "permit" {
			t.Errorf("the order is %s, %s", first, second)
		}
	})
}
