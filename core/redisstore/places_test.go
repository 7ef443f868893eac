package redisstore_test

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/internal/redistest"
)

// shared and permit take what callers can hold together.
func shared(t *testing.T, l *core.Locker, key string) *core.Lease {
	t.Helper()
	ctx, cancel := bounded(20 * time.Second)
	t.Cleanup(cancel)
	lease, err := l.LockShared(ctx, key)
	if err != nil {
		t.Fatalf("LockShared(%q): %v", key, err)
	}
	return lease
}

func permit(t *testing.T, l *core.Locker, key string, n int) *core.Lease {
	t.Helper()
	ctx, cancel := bounded(20 * time.Second)
	t.Cleanup(cancel)
	lease, err := l.Permit(ctx, key, n)
	if err != nil {
		t.Fatalf("Permit(%q, %d): %v", key, n, err)
	}
	return lease
}

// room counts who is in it, outside of Redis.
type room struct{ now, most atomic.Int64 }

func (r *room) enter() {
	here := r.now.Add(1)
	for {
		most := r.most.Load()
		if here <= most || r.most.CompareAndSwap(most, here) {
			return
		}
	}
}

func TestPermitsOfFourProcessesAreAtMostN(t *testing.T) {
	const n, callers, times = 5, 12, 25
	srv := redistest.Shared(t)
	var in room
	var wg sync.WaitGroup
	for range 4 {
		l := newLocker(t, srv.Client(t))
		for range callers {
			wg.Go(func() {
				for range times {
					lease := permit(t, l, "permits", n)
					in.enter()
					time.Sleep(time.Millisecond)
					in.now.Add(-1)
					release(t, lease)
				}
			})
		}
	}
	wg.Wait()
	if in.most.Load() != n {
		t.Errorf("%d at once, of %d", in.most.Load(), n)
	}
	wantGone(t, srv.Client(t))
}

// Readers of four processes never overlap with a writer, and none waits for long: a
// writer keeps new readers out, and readers come together after it.
func TestReadersAndWritersOfFourProcesses(t *testing.T) {
	for name, c := range map[string]struct{ readers, writers int }{
		"readers and one writer": {10, 0},
		"writers and one reader": {0, 10},
	} {
		t.Run(name, func(t *testing.T) {
			srv := redistest.Shared(t)
			var readers, writers room
			ctx, cancel := context.WithCancel(t.Context())
			var wg sync.WaitGroup
			section := func(l *core.Locker, write bool) {
				if write {
					lease := lock(t, l, "rw")
					if writers.enter(); readers.now.Load() != 0 || writers.now.Load() != 1 {
						t.Error("a writer is not alone")
					}
					time.Sleep(time.Millisecond)
					if readers.now.Load() != 0 {
						t.Error("a reader beside a writer")
					}
					writers.now.Add(-1)
					release(t, lease)
					return
				}
				lease := shared(t, l, "rw")
				if readers.enter(); writers.now.Load() != 0 {
					t.Error("a reader beside a writer")
				}
				time.Sleep(time.Millisecond)
				readers.now.Add(-1)
				release(t, lease)
			}
			one := newLocker(t, srv.Client(t)) // of a process of its own
			for range 4 {
				l := newLocker(t, srv.Client(t))
				for i := range c.readers + c.writers {
					wg.Go(func() {
						for ctx.Err() == nil {
							section(l, i >= c.readers)
						}
					})
				}
			}
			var waits []time.Duration
			for range 40 {
				begin := time.Now()
				section(one, c.writers == 0)
				waits = append(waits, time.Since(begin))
				time.Sleep(5 * time.Millisecond)
			}
			cancel()
			wg.Wait()
			slices.Sort(waits)
			t.Logf("the one waited %v at the median, %v at p95, %v at most", waits[20], waits[38], waits[39])
			if waits[38] > 2*time.Second { // the margin is for a machine that has other work
				t.Errorf("the one waited %v at p95", waits[38])
			}
			if c.readers > 0 && readers.most.Load() < 2 {
				t.Error("readers are never together")
			}
		})
	}
}

func TestAThousandSharersOfOneProcessAreOneHold(t *testing.T) {
	srv := redistest.Start(t)
	l := newLocker(t, srv.Client(t))
	first := shared(t, l, "k")
	srv.ResetStats(t)
	begin := time.Now()
	var wg sync.WaitGroup
	for range 1000 {
		wg.Go(func() {
			for range 20 {
				lease := shared(t, l, "k")
				time.Sleep(time.Millisecond)
				release(t, lease)
			}
		})
	}
	wg.Wait()
	calls, questions := srv.Calls(t)["evalsha"], int64(time.Since(begin)/(10*time.Millisecond))+1
	if calls > questions {
		t.Errorf("20,000 sections took %d calls, more than one in 10 ms (%d)", calls, questions)
	}
	release(t, first)
	wantGone(t, srv.Client(t))
}

// Redisson #4100, #6302: keys that never expire.
func TestEveryKeyOfAPlaceHasAnEnd(t *testing.T) {
	srv := redistest.Start(t)
	rdb := srv.Client(t)
	l, other := newLocker(t, rdb), newLocker(t, srv.Client(t))
	held := []*core.Lease{shared(t, l, "s"), shared(t, other, "s"), permit(t, l, "p", 2), permit(t, other, "p", 2)}
	ctx, cancel := bounded(300 * time.Millisecond)
	defer cancel()
	if _, err := l.Permit(ctx, "p", 2); err == nil { // lists itself as waiting
		t.Error("three permits of two")
	}
	if _, err := other.Lock(ctx, "s"); err == nil {
		t.Error("a writer beside readers")
	}
	for i := -1; i < len(held); i++ {
		if i >= 0 {
			release(t, held[i])
		}
		for _, key := range rdb.Keys(t.Context(), "*").Val() {
			if ttl, err := rdb.PTTL(t.Context(), key).Result(); ttl == -1 || err != nil {
				t.Errorf("after %d releases %s never ends (%v)", i+1, key, err)
			}
		}
	}
}

// Redisson #5762, #3891: the message of a release that was missed.
func TestAWaiterForAPlaceThatMissedTheMessageFindsItWithinASecondOrSo(t *testing.T) {
	srv := redistest.Start(t)
	rdb := srv.Client(t)
	l, other := newLocker(t, rdb), newLocker(t, srv.Client(t))
	for name, take := range map[string][2]func(*core.Locker) *core.Lease{
		"permit": {
			func(l *core.Locker) *core.Lease { return permit(t, l, "permit", 1) },
			func(l *core.Locker) *core.Lease { return permit(t, l, "permit", 1) },
		},
		"lock": {
			func(l *core.Locker) *core.Lease { return shared(t, l, "lock") },
			func(l *core.Locker) *core.Lease { return lock(t, l, "lock") },
		},
	} {
		first := take[0](other)
		done := make(chan struct{})
		go func() {
			defer close(done)
			release(t, take[1](l))
		}()
		redistest.Eventually(t, 5*time.Second, func(ctx context.Context) error {
			if n, err := rdb.HExists(ctx, "interlock:{"+name+"}", "q").Result(); err != nil || !n {
				return fmt.Errorf("not listed: %w", err)
			}
			return nil
		})
		// Freed without a message, as if it were lost on the way.
		if err := rdb.Del(t.Context(), "interlock:{"+name+"}").Err(); err != nil {
			t.Fatal(err)
		}
		begin := time.Now()
		<-done
		if took := time.Since(begin); took > 5*time.Second { // the margin is for a machine that has other work
			t.Errorf("%s: found after %v", name, took)
		}
		_ = first.Release(t.Context()) // it was deleted
	}
}

// Redisson #4462: the place of a holder that is gone without a trace is free at the end of its lease,
// and those that wait are there soon after.
func TestThePlacesOfADeadProcessAreFreeAgain(t *testing.T) {
	const ttl = time.Second
	srv := redistest.Start(t)
	w := newWire()
	dead := newLocker(t, srv.Client(t, w.through), core.Watchdog(ttl))
	for i := range 2 {
		permit(t, dead, "p", 2)
		if i == 0 {
			shared(t, dead, "s")
		}
	}
	w.cut(true)
	t.Cleanup(w.mend)
	cut := time.Now()
	live := newLocker(t, srv.Client(t))
	var wg sync.WaitGroup
	for name, take := range map[string]func() *core.Lease{
		"permit": func() *core.Lease { return permit(t, live, "p", 2) },
		"lock":   func() *core.Lease { return lock(t, live, "s") },
	} {
		wg.Go(func() {
			lease := take()
			if took := time.Since(cut); took > ttl+10*time.Second { // the margin is for a machine that has other work
				t.Errorf("%s: %v after the cut", name, took)
			}
			release(t, lease)
		})
	}
	wg.Wait()
}

func TestPlacesAreRenewedWhileMemoryIsFull(t *testing.T) {
	t.Parallel()
	srv := redistest.Start(t)
	rdb := srv.Client(t)
	l := newLocker(t, rdb, core.Watchdog(12*time.Second))
	held := []*core.Lease{shared(t, l, "s"), permit(t, l, "p", 3), permit(t, l, "p", 3)}
	if err := rdb.ConfigSet(t.Context(), "maxmemory", "1").Err(); err != nil {
		t.Fatal(err)
	}
	for range 2 { // two renewals while memory is full
		var deadlines []time.Time
		for _, lease := range held {
			deadlines = append(deadlines, lease.Deadline())
		}
		redistest.Eventually(t, 20*time.Second, func(context.Context) error {
			for i, lease := range held {
				if !lease.Deadline().After(deadlines[i]) {
					return fmt.Errorf("%s was not renewed", lease.Key())
				}
			}
			return nil
		})
	}
	for _, lease := range held {
		wantErr(t, confirm(t, lease), nil)
		release(t, lease)
	}
	if err := rdb.ConfigSet(t.Context(), "maxmemory", "0").Err(); err != nil {
		t.Fatal(err)
	}
	wantGone(t, rdb)
}

func BenchmarkShared(b *testing.B) {
	for _, goroutines := range []int{1, 16, 256} {
		b.Run(fmt.Sprintf("goroutines=%d/interlock", goroutines), func(b *testing.B) {
			l := newLocker(b, redistest.Shared(b).Client(b))
			ctx := context.Background()
			first, err := l.LockShared(ctx, "k")
			if err != nil {
				b.Fatal(err)
			}
			b.ReportAllocs()
			each(b, goroutines, func(int) {
				lease, err := l.LockShared(ctx, "k")
				if err != nil {
					b.Error(err)
					return
				}
				_ = lease.Release(ctx)
			})
			_ = first.Release(ctx)
		})
		b.Run(fmt.Sprintf("goroutines=%d/rwmutex", goroutines), func(b *testing.B) {
			var mu sync.RWMutex
			each(b, goroutines, func(int) { mu.RLock(); mu.RUnlock() }) //nolint:staticcheck // its cost alone
		})
	}
}

func BenchmarkPermit(b *testing.B) {
	for _, n := range []int{1, 10, 1000} {
		b.Run(fmt.Sprintf("n=%d", n), func(b *testing.B) {
			l := newLocker(b, redistest.Shared(b).Client(b))
			b.ReportAllocs()
			each(b, 64, func(int) {
				lease, err := l.Permit(context.Background(), "k", n)
				if err != nil {
					b.Error(err)
					return
				}
				_ = lease.Release(context.Background())
			})
		})
	}
}
