package core_test

import (
	"context"
	"fmt"
	"math"
	"testing"
	"testing/synctest"
	"time"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/memstore"
)

func TestMaxWaitersCountsThoseBehindAHolderOnly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStore()
		s.Intercept(always(memstore.Fault{After: 10 * time.Millisecond}))
		l := newLocker(t, s, core.MaxWaiters(1))
		got := make(chan error, 3)
		for range cap(got) { // at once, on a free lock: one asks, one waits
			go func() {
				lease, err := l.Lock(t.Context(), "k")
				if err == nil {
					time.Sleep(time.Second)
					release(t, lease)
				}
				got <- err
			}()
			synctest.Wait()
		}
		wantErr(t, <-got, core.ErrQueueFull)
		for range 2 {
			if err := <-got; err != nil {
				t.Errorf("refused though at most one waits: %v", err)
			}
		}
	})
}

func TestMaxWaitersCountsAHeadThatWaitsForAnotherProcess(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStore()
		l, other := newLocker(t, s, core.MaxWaiters(1)), newLocker(t, s)
		lease := held(t, other, t.Context(), "k")
		done := make(chan struct{})
		go func() {
			defer close(done)
			release(t, held(t, l, t.Context(), "k"))
		}()
		synctest.Wait()
		_, err := l.Lock(t.Context(), "k")
		wantErr(t, err, core.ErrQueueFull)
		release(t, lease)
		<-done
	})
}

// Ten callers want ten places at once. If the places are free, the callers wait for the
// store, and for no holder. The bound holds as soon as the store says that there is a holder.
func TestMaxWaitersCountsCallersOfPlacesOnceThereIsAHolder(t *testing.T) {
	for name, lock := range map[string]func(l *core.Locker, ctx context.Context) (*core.Lease, error){
		"permits": func(l *core.Locker, ctx context.Context) (*core.Lease, error) { return l.Permit(ctx, "k", 10) },
		"shared":  func(l *core.Locker, ctx context.Context) (*core.Lease, error) { return l.LockShared(ctx, "k") },
	} {
		for _, held := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, held: %v", name, held), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					store := memstore.New()
					free, refused := func() {}, 0
					if held {
						free, refused = store.Take("k", time.Hour), 8
					}
					store.Intercept(func(memstore.Request) memstore.Fault { return memstore.Delay(10 * time.Millisecond) })
					l := newLocker(t, store, core.MaxWaiters(2))
					got := make(chan error, 10)
					for range cap(got) {
						go func() {
							lease, err := lock(l, t.Context())
							got <- err
							if err == nil {
								time.Sleep(time.Second)
								_ = lease.Release(t.Context())
							}
						}()
					}
					for range refused {
						wantErr(t, <-got, core.ErrQueueFull)
					}
					free()
					for range cap(got) - refused {
						wantErr(t, <-got, nil)
					}
					time.Sleep(2 * time.Second)
				})
			})
		}
	}
}

func TestTimesThatCannotBeMeantAreRefused(t *testing.T) {
	for name, o := range map[string]core.Option{
		"TTL": core.TTL(math.MaxInt64), "Watchdog": core.Watchdog(math.MaxInt64),
		"Wait": core.Wait(math.MaxInt64), "MaxHold": core.MaxHold(math.MaxInt64),
		"TTL of 32 days": core.TTL(32 * 24 * time.Hour),
	} {
		_, err := core.New(newStore(), o)
		if wantErr(t, err, core.ErrConfig); err == nil {
			t.Errorf("%s is accepted", name)
		}
	}
	for name, o := range map[string]core.Option{
		"TTL": core.TTL(31 * 24 * time.Hour), "Watchdog": core.Watchdog(31 * 24 * time.Hour),
		"Wait": core.Wait(366 * 24 * time.Hour), "MaxHold": core.MaxHold(366 * 24 * time.Hour),
	} {
		if _, err := core.New(newStore(), o); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// Callers that share, and wait for the store alone, count as no waiters for a caller that
// wants the lock for itself either.
func TestMaxWaitersRefusesNoExclusiveCallerBehindSharersThatAskTheStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memstore.New()
		store.Intercept(func(memstore.Request) memstore.Fault { return memstore.Delay(10 * time.Millisecond) })
		l := newLocker(t, store)
		got := make(chan error, 10)
		for range cap(got) {
			go func() {
				lease, err := l.LockShared(t.Context(), "k")
				if err == nil {
					err = lease.Release(t.Context())
				}
				got <- err
			}()
		}
		synctest.Wait()
		lease, err := l.Lock(t.Context(), "k", core.MaxWaiters(2))
		wantErr(t, err, nil)
		wantErr(t, lease.Release(t.Context()), nil)
		for range cap(got) {
			wantErr(t, <-got, nil)
		}
	})
}
