package core_test

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/internal/carrier"
	"github.com/interlock-go/interlock/core/memstore"
	"github.com/interlock-go/interlock/core/observe"
	"github.com/interlock-go/interlock/internal/logtest"
)

// pipe is an observer, and the handler of a log, that writes to a pipe that no process reads.
type pipe struct {
	slog.Handler
	full chan struct{} // closed: written bytes are read again
}

func (p *pipe) block() { <-p.full }

func (p *pipe) Start(ctx context.Context, _ observe.Operation) (context.Context, observe.Observation) {
	return ctx, observe.Observation{
		Released: func(observe.Released) { p.block() },
		Renewed:  func(observe.Renewed) { p.block() },
		Lost:     func(observe.Loss) { p.block() },
	}
}

func (p *pipe) Enabled(context.Context, slog.Level) bool { p.block(); return true }

func (p *pipe) Handle(context.Context, slog.Record) error { p.block(); return nil }

// An observer that writes to a pipe that no process reads blocked the goroutine that ends
// leases: contexts went on while other processes had their locks.
func TestAnObserverThatBlocksKeepsNoLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const lease = 9 * time.Second
		p := &pipe{full: make(chan struct{})}
		logtest.SetDefault(t, p)
		hung := time.AfterFunc(time.Hour, func() {
			t.Error("a release, or the end of a lease, waits for the observer")
			close(p.full)
		})
		s, healthy := newStore(), newStore()
		opts := []core.LockerOption{core.Watchdog(lease), core.WithObserver(p), core.OnLost(func(core.Loss) { p.block() })}
		l, other := newLocker(t, s, opts...), newLocker(t, healthy, opts...)
		var leases []*core.Lease
		for i := range 6 {
			leases = append(leases, held(t, l, t.Context(), fmt.Sprint(i)))
		}
		kept := held(t, other, t.Context(), "k")
		time.Sleep(2 * lease) // the first renewals: the observer blocks on them
		for _, lease := range append(leases, kept) {
			if err := lease.Err(); err != nil {
				t.Errorf("%s was not renewed while the observer blocks: %v", lease.Key(), err)
			}
		}
		s.Intercept(always(memstore.Fault{Before: 10 * time.Minute}))
		waiter := make(chan error, 1)
		go func() { _, err := l.Lock(t.Context(), "0", core.Wait(time.Hour)); waiter <- err }()
		deadline := leases[0].Deadline()
		for _, lease := range leases {
			deadline = later(deadline, lease.Deadline())
		}
		time.Sleep(time.Until(deadline))
		synctest.Wait()
		for _, lease := range leases {
			if lease.Context().Err() == nil {
				t.Errorf("the context of %s goes on after the deadline of its lease", lease.Key())
			}
		}
		begin := time.Now()
		wantErr(t, leases[0].Release(t.Context()), core.ErrLost)
		if took := time.Since(begin); took > 3*time.Second {
			t.Errorf("Release took %v; want the time for the store, and little for the observer", took)
		}
		if err := kept.Err(); err != nil {
			t.Errorf("a lease of another locker was not renewed: %v", err)
		}
		for _, locker := range []*core.Locker{l, other} {
			ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
			defer cancel()
			begin = time.Now()
			if err := locker.Close(ctx); locker == other {
				wantErr(t, err, context.DeadlineExceeded)
			}
			if took := time.Since(begin); took > 6*time.Second {
				t.Errorf("Close took %v; want the time of its context at most, and little for the observer", took)
			}
		}
		wantErr(t, <-waiter, core.ErrClosed)
		wantErr(t, context.Cause(kept.Context()), core.ErrClosed)
		if hung.Stop() {
			close(p.full)
		}
		s.Intercept(nil)
		time.Sleep(time.Hour) // requests that hang, and the releases that Close has begun, end
	})
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// Acquired runs on the goroutine of its caller, who waits. Nobody else does.
func TestAnObserverThatBlocksACallerLeavesItsLeaseToTheWatchdog(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStore()
		full := make(chan struct{})
		l := newLocker(t, s, core.Watchdog(9*time.Second), core.WithObserver(observing{
			Acquired: func(observe.Acquired) { <-full },
		}))
		done := make(chan struct{})
		go func() {
			defer close(done)
			lease, err := l.Lock(t.Context(), "k")
			if err != nil {
				t.Error(err)
				return
			}
			wantErr(t, lease.Release(t.Context()), core.ErrLost)
		}()
		time.Sleep(time.Minute)
		if s.holder("k") == "" {
			t.Error("the lease of a caller that the observer keeps is not renewed")
		}
		s.Expire("k") // an operator
		time.Sleep(9 * time.Second)
		synctest.Wait()
		if n := core.Turns(l); n != 0 {
			t.Errorf("%d holds are left after the loss", n)
		}
		close(full)
		<-done
	})
}

// observing is an observer of one kind of event.
type observing observe.Observation

func (o observing) Start(ctx context.Context, _ observe.Operation) (context.Context, observe.Observation) {
	return ctx, observe.Observation(o)
}

func TestCallsThatAnObserverThatBlocksDoesNotGetAreCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		full := make(chan struct{})
		told := 0
		l := newLocker(t, newStore(), core.Watchdog(9*time.Second), core.WithObserver(observing{
			Renewed: func(observe.Renewed) { <-full; told++ },
		}))
		core.SetMostCallbacks(l, 10)
		lease := held(t, l, t.Context(), "k")
		time.Sleep(61 * time.Second) // 20 renewals: one is delivered, and 10 wait
		if n := l.Undelivered(); n != 9 {
			t.Errorf("%d calls were dropped; want 9 of 20", n)
		}
		close(full)
		synctest.Wait()
		if told != 11 {
			t.Errorf("%d calls were made after all; want 11", told)
		}
		release(t, lease)
	})
}

// slowLog is the handler of a log that takes a while for each record.
type slowLog struct {
	slog.Handler
	takes time.Duration
	lines *atomic.Int32
}

func (s slowLog) Enabled(context.Context, slog.Level) bool { return true }

func (s slowLog) Handle(context.Context, slog.Record) error {
	time.Sleep(s.takes)
	s.lines.Add(1)
	return nil
}

// A locker without observer and without OnLost logs each lost lease. It waited for the log on the
// goroutine that ends leases: with a log of 30 ms, 8 of 12 leases ran on while another process had
// their locks.
func TestLeasesEndWhileTheLogIsSlow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const leases = 600
		lines := new(atomic.Int32)
		logtest.SetDefault(t, slowLog{slog.DiscardHandler, 30 * time.Millisecond, lines})
		s := newStore()
		l := newLocker(t, s, core.Watchdog(9*time.Second))
		var late atomic.Int32
		var all []*core.Lease
		var over sync.WaitGroup
		for i := range leases {
			lease := held(t, l, t.Context(), fmt.Sprint(i))
			all = append(all, lease)
			over.Go(func() {
				<-lease.Context().Done()
				if time.Now().After(lease.Deadline()) {
					late.Add(1)
				}
			})
		}
		s.Intercept(always(memstore.Fault{Err: core.ErrUnavailable}))
		over.Wait()
		if n := late.Load(); n != 0 {
			t.Errorf("%d of %d contexts ended after the deadline of their lease; want none, however slow the log is", n, leases)
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		if n := lines.Load(); n != leases {
			t.Errorf("%d losses were logged; want %d", n, leases)
		}
		s.Intercept(nil)
		for _, lease := range all {
			wantErr(t, lease.Release(t.Context()), core.ErrLost)
		}
	})
}

// stuck is a context of a user whose values are not to be had any more.
type stuck struct {
	context.Context
	is *atomic.Bool
}

func (c stuck) Value(key any) any {
	if _, ours := key.(carrier.Key); ours && c.is.Load() {
		select {} // as on a mutex that its own code holds
	}
	return c.Context.Value(key)
}

// The report of a loss has the route of the request, which the goroutine that ends leases looked up in
// the context of the caller.
func TestAContextWhoseValuesBlockKeepsNoLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStore()
		var told losses
		l := newLocker(t, s, core.Watchdog(9*time.Second), core.OnLost(told.add))
		var blocks atomic.Bool
		g := core.Serialize(l, "account/{id}", core.Name("debit"))
		g.Do(t.Context(), one, func(ctx context.Context) bool {
			first := held(t, l, stuck{ctx, &blocks}, "a")
			second := held(t, l, t.Context(), "b")
			blocks.Store(true)
			s.Expire("a")
			s.Expire("b")
			time.Sleep(4 * time.Second) // until both are renewed
			synctest.Wait()
			for _, lease := range []*core.Lease{first, second} {
				if lease.Context().Err() == nil {
					t.Errorf("the context of %s goes on after the loss of its lease", lease.Key())
				}
			}
			for _, loss := range told.all() {
				if want := map[core.Hashed]string{"a": "/accounts/{id}", "b": ""}[loss.Key]; loss.Route != want {
					t.Errorf("the loss of %s has the route %q; want %q", string(loss.Key), loss.Route, want)
				}
			}
			blocks.Store(false)
			wantErr(t, first.Release(t.Context()), core.ErrLost)
			wantErr(t, second.Release(t.Context()), core.ErrLost)
			return true
		})
	})
}
