package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/interlock-go/interlock/core"
)

// workload is the work that each of many processes repeats: lock, hold, release.
type workload struct {
	processes int
	callers   int           // of each process, at a time
	keys      int           // that all share; 0: every caller has its own
	hold      time.Duration // for how long a section takes
	key       int           // the length of a key; 0 is shortKey
}

const (
	// ownKeys is through how many keys a caller goes that has its own.
	ownKeys  = 20
	shortKey = 16
	// maxFailures is the share of sections that may fail.
	maxFailures = 0.001
)

// name is a key of the workload, of its length.
func (w workload) name(k int) string { return fmt.Sprintf("k%0*d", max(w.key, shortKey)-1, k) }

// fleet is processes, played by lockers: each has its own id, queues, watchdog and
// store, and they share nothing but the servers.
type fleet struct {
	lockers []*core.Locker
	close   []func() error

	mu     sync.Mutex
	leases []*core.Lease // that are held until the end
}

// hold has a process take a lock and keep it.
func (f *fleet) hold(ctx context.Context, process int, key string) error {
	lease, err := f.lockers[process].Lock(ctx, key)
	if err != nil {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.leases = append(f.leases, lease)
	return nil
}

// holdEach has every process take so many locks.
func (f *fleet) holdEach(ctx context.Context, w workload, each int) error {
	return parallel(len(f.lockers)*each, func(i int) error {
		return f.hold(ctx, i%len(f.lockers), w.name(i))
	})
}

// release gives up all leases.
func (f *fleet) release(ctx context.Context) error {
	leases := f.leases
	f.leases = nil
	return parallel(len(leases), func(i int) error { return leases[i].Release(ctx) })
}

// parallel calls do for all numbers below n on some goroutines.
func parallel(n int, do func(i int) error) error {
	const goroutines = 64
	errs := make([]error, goroutines)
	var next atomic.Int64
	var wg sync.WaitGroup
	for g := range goroutines {
		wg.Go(func() {
			for i := int(next.Add(1)) - 1; i < n && errs[g] == nil; i = int(next.Add(1)) - 1 {
				errs[g] = do(i)
			}
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

// newFleet makes n lockers; open makes a store for each.
func newFleet(ctx context.Context, n int, open func() (core.Store, func() error, error), opts ...core.LockerOption) (*fleet, error) {
	f := &fleet{}
	for range n {
		s, end, err := open()
		if err != nil {
			return f, errors.Join(err, f.stop(ctx))
		}
		f.close = append(f.close, end)
		l, err := core.New(s, opts...)
		if err != nil {
			return f, errors.Join(err, f.stop(ctx))
		}
		f.lockers = append(f.lockers, l)
	}
	return f, nil
}

// stop releases all leases and closes all lockers and stores.
func (f *fleet) stop(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
	defer cancel()
	return errors.Join(f.release(ctx), parallel(len(f.close), func(i int) error {
		var err error
		if i < len(f.lockers) {
			err = f.lockers[i].Close(ctx)
		}
		return errors.Join(err, f.close[i]())
	}))
}

// outcome is the work of a workload between two moments.
type outcome struct {
	elapsed  time.Duration
	sections float64
	perKey   time.Duration // of the time of a key, for each section
	least    float64       // the smallest share of a process, of what each should have
}

// drive runs a workload on the fleet: for a while to warm up, then for the window. It calls
// mark at the beginning and the end of the window.
func (f *fleet) drive(ctx context.Context, w workload, warm, window time.Duration, mark func() error) (outcome, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	sections := make([]atomic.Int64, len(f.lockers))
	var failures atomic.Int64
	var failed atomic.Pointer[error] // the last one
	var wg sync.WaitGroup
	for p, l := range f.lockers {
		for c := range w.callers {
			wg.Go(func() {
				for i := 0; ctx.Err() == nil; i++ {
					k := (p*w.callers+c)*ownKeys + i%ownKeys
					if w.keys > 0 {
						k = p % w.keys
					}
					lease, err := l.Lock(ctx, w.name(k))
					if err == nil {
						pause(ctx, w.hold)
						err = lease.Release(ctx)
						sections[p].Add(1)
					}
					if err != nil && ctx.Err() == nil {
						err = fmt.Errorf("process %d: %w", p, err)
						failed.Store(&err)
						failures.Add(1)
					}
				}
			})
		}
	}
	pause(ctx, warm)
	before := make([]int64, len(sections))
	for p := range sections {
		before[p] = sections[p].Load()
	}
	err := mark()
	begin := time.Now()
	pause(ctx, window)
	o := outcome{elapsed: time.Since(begin)}
	for p := range sections {
		n := sections[p].Load() - before[p]
		o.sections += float64(n)
		if p == 0 || float64(n) < o.least {
			o.least = float64(n)
		}
	}
	o.least *= float64(len(sections)) / max(o.sections, 1)
	err = errors.Join(err, mark())
	if w.keys > 0 && o.sections > 0 {
		o.perKey = time.Duration(float64(o.elapsed) * float64(w.keys) / o.sections)
	}
	cancel()
	wg.Wait()
	// On a busy machine a request may take longer than it is given.
	if n := float64(failures.Load()); n > maxFailures*o.sections {
		err = errors.Join(err, fmt.Errorf("%.0f of %.0f sections failed: %w", n, o.sections, *failed.Load()))
	}
	return o, err
}

// pause takes so long, or until ctx ends.
func pause(ctx context.Context, d time.Duration) {
	if d <= 0 {
		return
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}
