//go:build long && unix

package faults

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/internal/redistest"
)

func TestAThousandWaitersAndOneRelease(t *testing.T) {
	s := stage(t)
	srv := redistest.Start(t)
	rdb := srv.Client(t)
	const processes, each = 4, 250
	held := s.must(s.locker(rdb, core.Unlisted()), "k")
	ctx, cancel := context.WithCancel(t.Context())
	granted := make(chan *core.Lease, processes*each)
	var others atomic.Int64
	var wg sync.WaitGroup
	var lockers []*core.Locker
	for range processes {
		l := s.locker(rdb, core.Unlisted())
		lockers = append(lockers, l)
		for range each {
			wg.Go(func() {
				lease, err := l.Lock(ctx, "k")
				switch {
				case err == nil:
					granted <- lease
				case errors.Is(err, context.Canceled):
					others.Add(1)
				default:
					t.Error(err)
				}
			})
		}
	}
	redistest.Eventually(t, soon, func(ctx context.Context) error {
		for _, l := range lockers {
			if h := l.Held(); len(h) != 1 || h[0].Waiters != each {
				return fmt.Errorf("waiting: %+v", h)
			}
		}
		if n := rdb.PubSubNumSub(ctx, "interlock:{k}:free").Val()["interlock:{k}:free"]; n != processes {
			return fmt.Errorf("%d processes listen", n)
		}
		if q := rdb.HGet(ctx, "interlock:{k}", "q").Val(); len(q) < processes*32 {
			return fmt.Errorf("in the list: %q", q)
		}
		return nil
	})
	srv.ResetStats(t)
	s.release(held)
	next := <-granted
	// The first in the list tries, the second after it before it hears that it was
	// too late, and perhaps the others: not each of the thousand.
	calls := srv.Calls(t)["evalsha"]
	t.Logf("one release and the grant after it: %d requests", calls)
	if calls > 1+2*processes {
		t.Errorf("one release cost %d requests", calls)
	}
	cancel()
	wg.Wait()
	if n := others.Load() + int64(len(granted)); n != processes*each-1 {
		t.Errorf("%d waiters are accounted for", n)
	}
	if len(granted) > 0 {
		t.Errorf("one release, %d holders", 1+len(granted))
	}
	s.release(next)
	s.clean(srv)
}

// childWaiters is how many wait in each child: the race detector knows no more than
// 8,128 goroutines.
const childWaiters = 2500

// childWaits has many wait for a lock that another process holds, and cancels them
// all at once.
func childWaits(l *core.Locker, next func() bool) {
	ctx, cancel := context.WithCancel(context.Background())
	before := runtime.NumGoroutine()
	var wg sync.WaitGroup
	var wrong atomic.Int64
	for range childWaiters {
		wg.Go(func() {
			if _, err := l.Lock(ctx, "k"); !errors.Is(err, context.Canceled) {
				wrong.Add(1)
			}
		})
	}
	for waiting := 0; waiting < childWaiters; runtime.Gosched() {
		if held := l.Held(); len(held) == 1 {
			waiting = held[0].Waiters
		}
	}
	reply(answer{Count: childWaiters})
	next()
	cancel()
	begin := time.Now()
	wg.Wait()
	took := time.Since(begin)
	a := answer{Count: len(l.Held())}
	if n := wrong.Load(); n > 0 {
		a.Problem = fmt.Sprintf("%d of %d waiters did not hear that they were cancelled", n, childWaiters)
	}
	if took > soon {
		a.Problem += fmt.Sprintf("; it took %v", took)
	}
	// What remains is the store's and the locker's, not one for each waiter.
	if n := runtime.NumGoroutine(); n > before+20 {
		a.Problem += fmt.Sprintf("; %d goroutines are left of %d", n-before, childWaiters)
	}
	reply(a)
}

func TestTenThousandWaitersCancelledAtOnce(t *testing.T) {
	s := stage(t)
	srv := redistest.Start(t)
	l := s.locker(srv.Client(t))
	held := s.must(l, "k")
	var all []*process
	for range 4 {
		all = append(all, s.spawn("wait", srv.Addr()))
	}
	n := 0
	for _, p := range all {
		n += p.hear().Count
	}
	if n != 10_000 {
		t.Errorf("%d wait", n)
	}
	begin := time.Now()
	for _, p := range all {
		p.tell()
	}
	for _, p := range all {
		if a := p.hear(); a.Count != 0 {
			t.Errorf("a process still waits for %d keys", a.Count)
		}
	}
	t.Logf("10,000 were told within %v", time.Since(begin))
	s.release(held)
	if err := pass(l, "k"); err != nil {
		t.Error(err)
	}
	for _, p := range all {
		p.finish()
	}
	s.clean(srv)
}
