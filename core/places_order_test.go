package core_test

import (
	"context"
	"errors"
	"maps"
	"testing"
	"testing/synctest"
	"time"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/driver"
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

// outcomes counts how calls end, which are made at once.
func outcomes(n int, call func() error) map[error]int {
	errs := make(chan error, n)
	for range n {
		go func() { errs <- call() }()
	}
	count := map[error]int{}
	for range n {
		err := <-errs
		for _, known := range []error{core.ErrFull, core.ErrHeld, core.ErrUnavailable} {
			if errors.Is(err, known) {
				err = known
				break
			}
		}
		count[err]++
	}
	return count
}

func wantOutcomes(t *testing.T, got, want map[error]int) {
	t.Helper()
	if !maps.Equal(got, want) {
		t.Errorf("the outcomes are %v, want %v", got, want)
	}
}

// The lock that this process gives back must not refuse callers of this process that can
// have places in it at the same time.
func TestTriesForPlacesWaitTogetherForTheReleaseOfTheirProcess(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memstore.New()
		l := newLocker(t, store)
		held, err := l.Lock(t.Context(), "k")
		wantErr(t, err, nil)
		store.Intercept(func(memstore.Request) memstore.Fault { return memstore.Delay(20 * time.Millisecond) })
		released := make(chan error)
		go func() { released <- held.Release(t.Context()) }()
		synctest.Wait()
		got := outcomes(4, func() error { _, err := l.TryPermit(t.Context(), "k", 3); return err })
		wantOutcomes(t, got, map[error]int{nil: 3, core.ErrFull: 1})
		wantErr(t, <-released, nil)
		closeSoon(t, l)
	})
}

// A caller that waits for another caller's request gets the answer of the store, and no
// error before it.
func TestATryWaitsForTheAnswerToTheTryBeforeIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memstore.New()
		store.Intercept(func(memstore.Request) memstore.Fault { return memstore.Delay(200 * time.Millisecond) })
		l := newLocker(t, store)
		got := outcomes(5, func() error { _, err := l.TryLockShared(t.Context(), "k"); return err })
		wantOutcomes(t, got, map[error]int{nil: 5})
		closeSoon(t, l)
	})
}

// No caller gets the error that all permits are taken unless the store has said so.
func TestTriesThatGetNoAnswerAreNotToldThatPermitsAreTaken(t *testing.T) {
	for name, c := range map[string]struct {
		fault memstore.Fault
		of    memstore.Op
	}{
		"the store is not ready":          {memstore.Fault{Err: driver.ErrNotReady}, memstore.Acquire},
		"the store does not answer":       {memstore.Fault{Before: 5 * time.Second}, memstore.Acquire},
		"the release is not answered yet": {memstore.Fault{Before: 5 * time.Second}, memstore.Release},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store := memstore.New()
				l := newLocker(t, store)
				held, err := l.Permit(t.Context(), "k", 1)
				wantErr(t, err, nil)
				store.Intercept(func(r memstore.Request) memstore.Fault {
					if r.Op == c.of {
						return c.fault
					}
					return memstore.Fault{}
				})
				atMost := 1
				if c.of == memstore.Release {
					go func() { _ = held.Release(t.Context()) }()
					synctest.Wait()
				} else {
					atMost = 10
				}
				got := outcomes(3, func() error { _, err := l.TryPermit(t.Context(), "k", atMost); return err })
				wantOutcomes(t, got, map[error]int{core.ErrUnavailable: 3})
				time.Sleep(time.Minute) // until all is answered
				closeSoon(t, l)
			})
		})
	}
}

// closeSoon closes a locker although the test has not released its leases.
func closeSoon(t *testing.T, l *core.Locker) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	_ = l.Close(ctx)
}
