package core_test

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/driver"
	"github.com/interlock-go/interlock/core/memstore"
	"github.com/interlock-go/interlock/internal/logtest"
)

func TestALateAcquireOfALongTTLIsFreedSoonAndNotLookedAfterForEver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStore()
		l := newLocker(t, s)
		s.Intercept(during(memstore.Acquire, memstore.LostRequest))
		_, err := l.Lock(t.Context(), "k", core.TTL(30*24*time.Hour))
		wantErr(t, err, core.ErrUnavailable)
		owner := s.seen(memstore.Acquire)[0].Owner
		s.Intercept(nil)
		for _, late := range []time.Duration{time.Second, time.Minute, 10 * time.Minute} {
			time.Sleep(late)
			s.late(t, "k", owner, 30*24*time.Hour) // it is executed now
			begin := time.Now()
			for s.holder("k") != "" && time.Since(begin) < time.Hour {
				time.Sleep(time.Second)
			}
			if d := time.Since(begin); d > 61*time.Second {
				t.Errorf("executed late, it held the lock for %v", d)
			}
		}
		time.Sleep(15 * time.Minute)
		if n := core.Orphans(l); n != 0 {
			t.Errorf("%d owners are looked after still", n)
		}
		if n := s.count(memstore.Release); n > 50 {
			t.Errorf("%d releases of an owner that held the lock three times", n)
		}
	})
}

func TestALockThatCouldNotBeReleasedIsReleasedWhenTheStoreIsBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStore()
		l := newLocker(t, s)
		lease := held(t, l, t.Context(), "k", core.TTL(24*time.Hour))
		s.Intercept(always(memstore.Unreachable))
		wantErr(t, lease.Release(t.Context()), core.ErrUnavailable)
		time.Sleep(2 * time.Hour)
		s.Intercept(nil)
		time.Sleep(62 * time.Second)
		if h := s.holder("k"); h != "" {
			t.Errorf("%s still holds the lock", h)
		}
	})
}

func TestAReleaseOfWhichTheStoreSaysThatItIsNotReadyIsUnavailable(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStore()
		l := newLocker(t, s)
		lease := held(t, l, t.Context(), "k")
		s.Intercept(always(memstore.Fault{Err: driver.ErrNotReady}))
		err := lease.Release(t.Context())
		wantErr(t, err, core.ErrUnavailable)
		wantErr(t, err, driver.ErrNotReady)
		s.Intercept(nil)
	})
}

// away is a store of two servers. The server for keys that begin with "bad" hangs.
func away(r memstore.Request) memstore.Fault {
	if !strings.HasPrefix(r.Key, "bad") {
		return memstore.Fault{}
	}
	if r.Op == memstore.Acquire {
		return memstore.LostRequest
	}
	return memstore.Fault{Before: time.Second, Err: core.ErrUnavailable}
}

func TestAServerThatHangsDoesNotHoldUpTheReleasesOfOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStore()
		s.Intercept(away)
		l := newLocker(t, s)
		for i := range hanging {
			_, err := l.Lock(t.Context(), fmt.Sprint("bad", i), core.TTL(10*time.Hour))
			wantErr(t, err, core.ErrUnavailable)
		}
		time.Sleep(time.Minute) // each has failed once
		for range 20 {
			s.Intercept(func(r memstore.Request) memstore.Fault {
				if f := away(r); f.Err != nil {
					return f
				}
				return memstore.LostReply
			})
			_, err := l.Lock(t.Context(), "good", core.TTL(10*time.Hour))
			wantErr(t, err, core.ErrUnavailable)
			synctest.Wait()
			if h := s.holder("good"); h != "" {
				t.Fatalf("%s waits for its release behind those of a server that hangs", h)
			}
			s.Intercept(away)
			time.Sleep(100 * time.Millisecond)
		}
		s.Intercept(nil)
	})
}

func TestTheReaperLooksAfterABoundedNumberOfOwners(t *testing.T) {
	logtest.Default(t)
	synctest.Test(t, func(t *testing.T) {
		s := newStore()
		s.Intercept(away)
		l := newLocker(t, s)
		const most = 50
		core.SetMostOrphans(l, most)
		for i := range most + 10 {
			_, err := l.Lock(t.Context(), fmt.Sprint("bad", i), core.TTL(10*time.Hour))
			wantErr(t, err, core.ErrUnavailable)
		}
		if n := core.Orphans(l); n != most {
			t.Errorf("%d owners are looked after, want %d", n, most)
		}
		time.Sleep(10 * time.Minute) // all have failed
		_, err := l.Lock(t.Context(), "bad", core.TTL(10*time.Hour))
		wantErr(t, err, core.ErrUnavailable)
		if n := core.Orphans(l); n != most {
			t.Errorf("%d owners are looked after, want %d", n, most)
		}
		s.Intercept(nil)
	})
}

// How long callers of keys on a healthy server take while another server hangs with
// 10,000 releases outstanding, and more come.
func BenchmarkHealthyKeysBesideAServerThatHangs(b *testing.B) {
	s := newStore()
	s.Intercept(away)
	l, err := core.New(s)
	if err != nil {
		b.Fatal(err)
	}
	ctx := b.Context()
	for i := range 10_000 {
		_, _ = l.Lock(ctx, fmt.Sprint("bad", i), core.TTL(10*time.Minute))
	}
	var stop atomic.Bool
	var bad sync.WaitGroup
	for g := range 100 {
		bad.Go(func() {
			for i := 0; !stop.Load(); i++ {
				_, _ = l.Lock(ctx, fmt.Sprint("bad", g, "-", i), core.TTL(10*time.Minute))
				time.Sleep(20 * time.Millisecond)
			}
		})
	}
	took := make([]time.Duration, 0, b.N)
	b.ReportAllocs()
	start := time.Now()
	for i := 0; b.Loop(); i++ {
		// A caller comes every half millisecond, whatever became of the one before:
		// a pause of all of them counts for each.
		begin := start.Add(time.Duration(i) * 500 * time.Microsecond)
		time.Sleep(time.Until(begin))
		lease, err := l.Lock(ctx, fmt.Sprint("good", i%1000))
		if err != nil {
			b.Fatal(err)
		}
		_ = lease.Release(ctx)
		took = append(took, time.Since(begin))
		s.forget()
	}
	b.StopTimer()
	stop.Store(true)
	bad.Wait()
	slices.Sort(took)
	b.ReportMetric(float64(took[len(took)*99/100].Microseconds()), "p99-µs")
	b.ReportMetric(float64(took[len(took)-1].Microseconds()), "max-µs")
	s.Intercept(nil)
	_ = l.Close(ctx)
}
