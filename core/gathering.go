package core

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/interlock-go/interlock/core/driver"
	"github.com/interlock-go/interlock/core/internal/carrier"
	"github.com/interlock-go/interlock/core/internal/clock"
	"github.com/interlock-go/interlock/core/internal/lent"
	"github.com/interlock-go/interlock/core/observe"
)

// GatherOption is an option for gather.New (package core/gather). Every [Option] is one.
type GatherOption interface{ applyToGather(*config) }

func (o option) applyToGather(c *config) { o(c) }

// The compiler runs this before any function of package gather, which imports this package.
var _ = func() (none struct{}) {
	lent.Prepare = func(locker, options any) (*lent.Locks, error) {
		l, _ := locker.(*Locker)
		opts, _ := options.([]GatherOption)
		return l.lend(opts)
	}
	return none
}()

// lend prepares the options of a group of package gather.
func (l *Locker) lend(opts []GatherOption) (*lent.Locks, error) {
	if l == nil {
		return nil, fmt.Errorf("%w: gather.New with a nil locker; core.New makes one", ErrConfig)
	}
	c := l.base
	c.begin()
	for _, o := range opts {
		if o != nil {
			o.applyToGather(&c)
		}
	}
	if c.terms.Kind.Place() {
		c.fail("Shared and Permits are not for gather: several sections would run at the same time")
	}
	if c.terms.Line != driver.InTurn {
		c.fail("%s is not for gather: gather.Latest keeps the newest request of a key", lines[c.terms.Line])
	}
	if err := c.finish(&l.base); err != nil {
		return nil, err
	}
	if err := l.serves(&c); err != nil {
		return nil, err
	}
	// A group counts its waiting callers itself: few of them come to the locker.
	most := c.terms.MaxWaiters
	c.terms.MaxWaiters = 0
	return &lent.Locks{
		Wait: c.terms.Wait, Nested: l.base.heldWait, MaxWaiters: most, Name: c.name, Observed: l.base.observer != nil,
		Check: checkKey,
		Holds: l.surroundings,
		Join: func(ctx context.Context, key string) (context.Context, string, func() bool) {
			return l.joinCaller(ctx, key, &c)
		},
		Base: func(ctx context.Context, held []string) context.Context { return withCallers(ctx, held) },
		Lock: func(ctx context.Context, key string, wait time.Duration) (any, error) {
			lease, err := l.lockFor(ctx, key, &c, wait)
			if err != nil {
				return nil, err
			}
			return lease, nil
		},
		Detach: func(lease any, base context.Context) {
			of, _ := lease.(*Lease)
			of.parent = base
		},
		Gathered: func(lease, gathered any) {
			of, _ := lease.(*Lease)
			with, _ := gathered.(observe.Gathered)
			of.gathered(with)
		},
	}, nil
}

// surroundings reports whether ctx is under a lease of this locker, and whether it has callers to look at.
func (l *Locker) surroundings(ctx context.Context) (nested, callers bool) {
	for lease := LeaseFromContext(ctx); lease != nil; lease = lease.outer() {
		callers = true
		if lease.config.locker == l && lease.Err() == nil {
			return true, true
		}
	}
	return false, callers || carrier.Value(ctx, callersKey{}) != nil
}

// joinCaller is [Locker.join] for one caller with the leases and the callers of its context.
func (l *Locker) joinCaller(ctx context.Context, key string, c *config) (joined context.Context, held string, leave func() bool) {
	held = HeldFor(ctx)
	joined, leave = l.join(ctx, []string{key}, c.terms, parseCallers([]string{held}))
	return joined, held, leave
}

// withCallers is [WithHeld] for several requests: the context has the callers of all.
func withCallers(ctx context.Context, held []string) context.Context {
	var all callers
	for _, field := range held {
		for _, c := range parseCallers([]string{field}) {
			if !slices.Contains(all, c) {
				all = append(all, c)
			}
		}
	}
	if len(all) == 0 {
		return ctx
	}
	return context.WithValue(ctx, callersKey{}, all)
}

// lockFor takes the lock of a key, and waits for so long.
func (l *Locker) lockFor(ctx context.Context, key string, c *config, wait time.Duration) (*Lease, error) {
	lease := &Lease{config: c, parent: ctx}
	var start, deadline clock.Instant
	if wait >= 0 || l.base.observer != nil {
		if start = l.locks.Clock.Now(); wait >= 0 {
			deadline = start.Add(wait)
		}
	}
	if err := l.lockUntil(ctx, lease, key, c, start, deadline); err != nil {
		return nil, err
	}
	return lease, nil
}

// gathered calls the observer.
func (lease *Lease) gathered(g observe.Gathered) {
	if o := lease.observation(); o != nil && o.Gathered != nil {
		c := &lease.config.locker.calls
		c.observed.Put(func() { c.told("Observation.Gathered", func() { o.Gathered(g) }) })
	}
}
