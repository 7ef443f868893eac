package core

import (
	"context"
	"fmt"
	"sync"

	"github.com/interlock-go/interlock/core/driver"
	"github.com/interlock-go/interlock/core/internal/requests"
)

// maxPermits is the largest number of permits of a key. The store keeps an entry for
// each permit that is taken.
const maxPermits = 1024

// Shared asks for a shared hold: any number of callers, in all processes, hold the lock
// of the key at the same time, as readers do. They exclude the callers that ask for it
// without Shared, and these exclude them. For [Locker.Lock], its relatives, and
// [NewGuard]; not for [New].
//
// A caller that waits for the lock for itself keeps later callers from sharing it, so
// that readers cannot keep a writer out for ever. If several callers of one process
// share a lock, the store sees one hold of that process: to share it once more costs no
// round trip.
//
// The fencing token of a shared hold is greater than the token of each exclusive holder
// before it, and smaller than the token of each exclusive holder after it. Callers that share can have
// the same token. A shared hold cannot become an exclusive one ([ErrUpgrade]).
func Shared() Option {
	return option(func(c *config) { c.setKind(driver.Shared, 0) })
}

// Permits asks for one of n permits: at most n callers, in all processes, hold the key
// at the same time. n is at least 1 and at most 1024. For [Locker.Lock], its relatives,
// and [NewGuard]; not for [New].
//
// A permit is a lease: it is renewed, lost, observed and released as a lock is, and the
// permit of a process that died is free when its lease has ended. If all permits are
// taken for as long as the caller waits, it gets [ErrFull].
//
// n counts for the caller that gives it: it gets no permit while n others are taken.
// Give one number for a key everywhere. Where numbers differ, callers with the smaller
// one can wait for ever; where a number was lowered, those permits that are too many
// stay until they are released. A caller that asks for the key without Permits waits
// until no permit is taken, and gets no other caller in meanwhile.
//
// The fencing tokens of permits are different from each other. They do not order the
// holders, and a fence must not compare them. Permits and [Shared] on one key do not
// make sense together: a process that shares counts as one.
//
// A caller that has a permit of a key and asks for another one under the context of its
// lease gets the same permit once more, as re-entry does: it takes one of n, not two.
func Permits(n int) Option {
	return option(func(c *config) {
		if n < 1 || n > maxPermits {
			c.fail("Permits(%d): must be at least 1 and at most %d", n, maxPermits)
			return
		}
		c.setKind(driver.Permit, n)
	})
}

// setKind says how a lock is held. A list of options, with the method that they are
// given to, can say it in one way only: of two ways neither is likely to be meant.
func (c *config) setKind(kind driver.Kind, atMost int) {
	if c.kindSet && (c.terms.Kind != kind || c.terms.AtMost != atMost) {
		c.fail("%s and %s together: a lock is held in one way", kindText(c.terms.Kind, c.terms.AtMost), kindText(kind, atMost))
		return
	}
	c.kindSet, c.terms.Kind, c.terms.AtMost = true, kind, atMost
}

func kindText(kind driver.Kind, atMost int) string {
	switch {
	case kind == driver.Permit && atMost == 0:
		return "AtMostFunc"
	case kind == driver.Permit:
		return fmt.Sprintf("Permits(%d)", atMost)
	}
	return "Shared"
}

// Share makes a [Guard] that lets requests with the same key run at the same time, but
// not while a request of a guard made by [Serialize] has that key: readers share, and a
// writer excludes them. It is Serialize with the option [Shared].
func Share(l *Locker, template string, opts ...GuardOption) *Guard {
	return mustGuard(l, template, Shared(), opts)
}

// AtMost makes a [Guard] that lets at most n requests with the same key run at the same
// time, in all processes. It is [Serialize] with the option [Permits]. A request that
// gets no permit within its wait is refused with [reason.Full]. It is no rate limit: it
// bounds how many requests run, not how many come in a second.
func AtMost(l *Locker, n int, template string, opts ...GuardOption) *Guard {
	return mustGuard(l, template, Permits(n), opts)
}

// AtMostFunc is [AtMost] with a number for each request: by the plan of a tenant, by the time of
// day. The function n runs before the store is asked, for many requests at the same time; it may
// write to the slices that it gets from req.
//
// A number of 0 refuses the request at once with [reason.Full]. A negative number, or a number
// above 1024, is an error of the server ([reason.Misconfigured]). An error of n that matches
// [ErrKey] refuses the request as a mistake of the client; any other error is the server's
// ([reason.Internal]). The server's errors are logged, and the client gets no text of them.
//
// Requests with one key should get one number ([Permits] says what happens where numbers differ).
func AtMostFunc(l *Locker, n func(ctx context.Context, req Request) (int, error), template string, opts ...GuardOption) *Guard {
	kind := option(func(c *config) {
		if n == nil {
			c.fail("AtMostFunc with a nil function")
			return
		}
		c.setKind(driver.Permit, 0)
		c.guard.permits = &permits{number: n}
	})
	return mustGuard(l, template, kind, opts)
}

// permits finds the number of permits of a request, for [AtMostFunc].
type permits struct {
	number  func(ctx context.Context, req Request) (int, error)
	configs sync.Map // of the rule, by number: there are at most maxPermits
}

// of returns the config c with the number of a request.
func (p *permits) of(ctx context.Context, req Request, c *config) (*config, error) {
	n, err := p.number(ctx, requests.Copy(req))
	switch {
	case err != nil:
		return nil, fmt.Errorf("interlock: finding the number of permits: %w", err)
	case n < 0 || n > maxPermits:
		return nil, fmt.Errorf("%w: AtMostFunc: the function returned %d; accepted are 0 to %d", ErrConfig, n, maxPermits)
	case n == 0:
		return nil, fmt.Errorf("%w: the request has a number of 0", ErrFull)
	}
	if own, ok := p.configs.Load(n); ok {
		return own.(*config), nil //nolint:forcetypeassert // there is no other
	}
	own := *c
	own.terms.AtMost = n
	p.configs.Store(n, &own)
	return &own, nil
}

func mustGuard(l *Locker, template string, kind Option, opts []GuardOption) *Guard {
	g, err := NewGuard(l, template, append([]GuardOption{kind}, opts...)...)
	if err != nil {
		panic(err)
	}
	return g
}

// LockShared is [Locker.Lock] with the option [Shared].
func (l *Locker) LockShared(ctx context.Context, key string, opts ...Option) (*Lease, error) {
	return l.lockPlace(ctx, key, place{shared: true}, opts)
}

// TryLockShared is [Locker.TryLock] with the option [Shared]. It does not count as
// held elsewhere that other callers of this process ask for the same at the moment.
func (l *Locker) TryLockShared(ctx context.Context, key string, opts ...Option) (*Lease, error) {
	return l.lockPlace(ctx, key, place{shared: true, try: true}, opts)
}

// Permit is [Locker.Lock] with the option [Permits]: a semaphore of all processes.
func (l *Locker) Permit(ctx context.Context, key string, n int, opts ...Option) (*Lease, error) {
	return l.lockPlace(ctx, key, place{atMost: n}, opts)
}

// TryPermit is [Locker.TryLock] with the option [Permits]. It returns [ErrFull] if all
// permits are taken. Callers of this process that ask at the same time do not keep it
// from a permit that is free: they ask the store together.
func (l *Locker) TryPermit(ctx context.Context, key string, n int, opts ...Option) (*Lease, error) {
	return l.lockPlace(ctx, key, place{atMost: n, try: true}, opts)
}

// lockPlace takes a place. If the call has no options, it keeps the resulting config
// for the next call.
func (l *Locker) lockPlace(ctx context.Context, key string, place place, opts []Option) (*Lease, error) {
	if len(opts) == 0 {
		if c, ok := l.placeConfigs.Load(place); ok {
			return l.lockOne(ctx, key, c.(*config)) //nolint:forcetypeassert // there is no other
		}
	}
	kind := Shared()
	if !place.shared {
		kind = Permits(place.atMost)
	}
	c, err := l.base.forCall(append([]Option{kind}, opts...))
	if err != nil {
		return nil, err
	}
	if place.try {
		c.terms.Wait = 0
	}
	if len(opts) == 0 {
		l.placeConfigs.Store(place, c) // there are few: numbers of permits
	}
	return l.lockOne(ctx, key, c)
}

// place is what a method asks for, without options.
type place struct {
	shared, try bool
	atMost      int
}

// kinds are the names of the kinds of holds.
var kinds = [...]string{driver.Exclusive: "exclusive", driver.Shared: "shared", driver.Permit: "permit"}
