package core_test

import (
	"math"
	"testing"
	"testing/synctest"
	"time"

	"github.com/interlock-go/interlock/core"
)

func TestMaxWaitersCountsThoseBehindAHolderOnly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newFake()
		s.onCall(func(call) fault { return fault{after: 10 * time.Millisecond} })
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
		s := newFake()
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

func TestTimesThatCannotBeMeantAreRefused(t *testing.T) {
	for name, o := range map[string]core.Option{
		"TTL": core.TTL(math.MaxInt64), "Watchdog": core.Watchdog(math.MaxInt64),
		"Wait": core.Wait(math.MaxInt64), "MaxHold": core.MaxHold(math.MaxInt64),
		"TTL of 32 days": core.TTL(32 * 24 * time.Hour),
	} {
		_, err := core.New(newFake(), o)
		if wantErr(t, err, core.ErrConfig); err == nil {
			t.Errorf("%s is accepted", name)
		}
	}
	for name, o := range map[string]core.Option{
		"TTL": core.TTL(31 * 24 * time.Hour), "Watchdog": core.Watchdog(31 * 24 * time.Hour),
		"Wait": core.Wait(366 * 24 * time.Hour), "MaxHold": core.MaxHold(366 * 24 * time.Hour),
	} {
		if _, err := core.New(newFake(), o); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}
