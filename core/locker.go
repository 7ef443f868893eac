package core

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/interlock-go/interlock/core/driver"
	"github.com/interlock-go/interlock/core/internal/lock"
)

// maxKey is the length of the longest key, in bytes.
const maxKey = 512

// Locker takes locks from a [Store]: each lock is a mutex of all processes. It keeps the queue of local callers for each
// key, renews the leases that it has granted, and cleans up after requests with an
// unknown outcome. Make it with [New]; the zero value is not usable.
//
// Use one Locker for a process and a store: only callers of the same Locker share a
// queue, re-enter each other's locks and hand locks over in memory. A Locker is
// safe for concurrent use. Call [Locker.Close] at the end.
type Locker struct {
	base         config
	store        Store
	locks        *lock.Table
	calls        callbacks
	chains       chains
	placeConfigs sync.Map // place -> *config, for calls without options
}

// New makes a [Locker] on a store. The options become the defaults of all its locks
// and of the guards made with it; see [Option] and [LockerOption].
//
// New returns an error that matches [ErrConfig] for a nil store, for an option that
// cannot work, and for a lease that the store never gives ([driver.Limited]): one above
// MaxTTL of package quorum. It does not contact the store.
func New(store Store, opts ...LockerOption) (*Locker, error) {
	if store == nil {
		return nil, fmt.Errorf("%w: store is nil; redisstore.New makes one", ErrConfig)
	}
	base, err := defaultConfig().forLocker(opts)
	if err != nil {
		return nil, err
	}
	l := &Locker{base: base, store: store}
	if err := l.serves(&base); err != nil {
		return nil, err
	}
	l.locks = lock.NewTable(store, base.turnTime, base.turnCount)
	l.locks.Hooks.Refused = l.chains.refused
	l.calls.init()
	l.locks.Hooks.Log, l.locks.Hooks.Observed = &l.calls.log, base.observer != nil
	if !base.unlisted {
		l.locks.Announce(base.service[0], base.service[1])
	}
	l.base.locker = l
	return l, nil
}

// Lock takes the lock of a key. While the lock is held elsewhere, Lock waits: by
// default until ctx ends, with [Wait] for a bounded time. The locker renews the
// lease that Lock returns until the caller releases it with [Lease.Release]; with
// [TTL] the lease ends by itself. A key has 1 to 512 bytes.
//
// If ctx is, or derives from, the context of a lease that holds the key already,
// Lock adds a hold and does not ask the store; see [Lease]. In a handler of gin that is
// c.Request.Context(). A *gin.Context hides the lease, unless the gin engine has
// ContextWithFallback on: Lock returns [ErrConfig], since it would wait for itself.
//
// If Lock returns an error, the caller holds nothing and has nothing to clean up.
// The error matches any of these:
//
//   - [ErrHeld]: the wait has ended. [ErrQueueFull] matches it too: [MaxWaiters]
//     callers waited already. So does [ErrSuperseded]: a newer caller came ([Newest]).
//   - [ErrUnavailable], [ErrNotReplicated], [ErrKeyOccupied]: the store failed. While
//     it answers that it is not ready ([driver.ErrNotReady]: it loads, it only reads, or
//     it fails inside), Lock waits as for a holder. A caller without [Wait] is not told:
//     after a second the cause is logged through [slog.Default], and then once a minute.
//   - [ErrClosed]: the locker is closing.
//   - [ErrKey], [ErrConfig]: the key is empty or too long, or an option cannot
//     work.
//   - [ErrLost], [ErrMaxHold]: ctx belongs to a lease of this key that was
//     lost.
//   - [context.Cause] of ctx: ctx ended first. The error matches the error of the last try
//     as well, if the store was not ready.
func (l *Locker) Lock(ctx context.Context, key string, opts ...Option) (*Lease, error) {
	c, err := l.callConfig(opts)
	if err != nil {
		return nil, err
	}
	return l.lockOne(ctx, key, c)
}

// TryLock is [Locker.Lock] without waiting for the holder; an option [Wait] has no
// effect. It returns [ErrHeld] at once if the lock is held, or if another caller of
// this process waits for it or asks for it. A lock without a holder may be kept for other processes, which
// may have ended: TryLock waits up to 200 ms for it. It does wait for the store's answer, also
// for the answer to a release of this process that is on its way: at most 250 ms, then
// it returns [ErrUnavailable]. If the store answers that it is not ready
// ([driver.ErrNotReady]), TryLock tries again for 250 ms.
func (l *Locker) TryLock(ctx context.Context, key string, opts ...Option) (*Lease, error) {
	c, err := l.base.forCall(opts)
	if err != nil {
		return nil, err
	}
	c.terms.Wait, c.terms.Line = 0, driver.InTurn
	return l.lockOne(ctx, key, c)
}

// LockAll takes the locks of several keys, all of them or none. It takes each key
// once, in sorted order, so that two callers with the same keys cannot wait for
// each other. [Wait] bounds the time for all keys together. A fixed lease ([TTL])
// counts for all keys from the last grant. The lease that LockAll returns is lost
// when one of its locks is lost. With one key it is [Locker.Lock]; with no key it
// returns [ErrKey]. Its other errors are as in [Locker.Lock].
//
// A caller that already holds other keys in its context can still meet a caller that
// takes them in the opposite order. Such a wait is therefore bounded ([NestedWait],
// default 5 s). On [ErrHeld] release all locks and start again, better with one LockAll
// for all keys.
func (l *Locker) LockAll(ctx context.Context, keys []string, opts ...Option) (*Lease, error) {
	c, err := l.callConfig(opts)
	if err != nil {
		return nil, err
	}
	return l.lockWith(ctx, keys, c)
}

// Do takes the lock of a key, runs fn under [Lease.Context] and releases the lock,
// also when fn panics. It returns the error of [Locker.Lock] or the error of fn. If
// the lease was lost before fn returned, [ErrLost] (or [ErrMaxHold]) is joined to
// it: what fn did may overlap with another holder. An error of the release goes to
// the [observe.Observer] only.
func (l *Locker) Do(ctx context.Context, key string, fn func(ctx context.Context) error, opts ...Option) error {
	lease, err := l.Lock(ctx, key, opts...)
	if err != nil {
		return err
	}
	defer lease.Release(ctx) // the observer gets its error; Err below reports a loss
	err = fn(lease.Context())
	if lost := lease.Err(); lost != nil && !errors.Is(lost, ErrReleased) && !errors.Is(err, lost) {
		err = errors.Join(err, lost)
	}
	return lease.stopped(err)
}

// Holding describes one lock that this process holds or waits for.
type Holding struct {
	// Key is the lock's key.
	Key string
	// Held says that a caller of this process holds the lock.
	Held bool
	// Kind is the kind of the hold: "exclusive", "shared" ([Shared]) or "permit"
	// ([Permits]). It is empty if Held is false.
	Kind string
	// AtMost is the number of permits, for the kind "permit".
	AtMost int
	// Since is the time of the grant to the present holder; the zero time if Held is
	// false.
	Since time.Time
	// Token is the fencing token of the present holder; 0 if Held is false.
	Token int64
	// Rule is the name of the call or guard that took the lock ([Name]); it may be empty.
	Rule string
	// Holds is the number of holds of the lock: 1, and one more for each re-entry, and of
	// a lock that callers of this process share, one for each of them.
	Holds int
	// Deadline is the end of the lease without another renewal, as
	// [Lease.Deadline]; the zero time if Held is false.
	Deadline time.Time
	// Renewals is the number of renewals of the locker that the store has confirmed since it granted
	// the lock to this process. A hand-off to another caller of the process does not reset
	// it. [Lease.Check] is not counted.
	Renewals int
	// LastError is the error of the last renewal; nil if that succeeded, or if there
	// was none. Its text may contain the key and addresses of servers.
	LastError error
	// Waiters is the number of callers of this process that wait for the lock.
	Waiters int
}

// Held lists the locks that this process holds or waits for, sorted by key. A key of
// which the process has several permits is there once for each. The
// list can be out of date when it is returned: use it for debugging, not for
// decisions.
func (l *Locker) Held() []Holding {
	var all []Holding
	for _, s := range l.locks.States() {
		h := Holding{Key: s.Key, Waiters: s.Waiters}
		if by, ok := s.Holder.(*holder); ok {
			h.Held, h.Since, h.Token, h.Holds, h.Rule = true, s.Since, s.Token, s.Holds, by.config.name
			h.Kind, h.AtMost = kinds[s.Terms.Kind], s.Terms.AtMost
			h.Deadline, h.Renewals, h.LastError = s.Deadline, s.Renewals, s.LastError
		}
		all = append(all, h)
	}
	slices.SortStableFunc(all, func(a, b Holding) int { return strings.Compare(a.Key, b.Key) })
	return all
}

// Close drains the locker. New calls and waiting callers get [ErrClosed] at once.
// Holders may re-enter their locks, and the locker renews their leases until the
// last lock is released or ctx ends.
//
// If ctx ends first, Close ends the contexts of the remaining leases with cause
// [ErrClosed], stops all renewals and returns an error that matches the cause of
// ctx. It does not delete the keys of handlers that still run: those locks end with
// their leases.
//
// The observer is called for the leases that Close ends before Close returns, unless it takes
// more than 250 ms.
//
// Close does not close the store. It may be called again, also at the same time:
// each call waits, and the first of their contexts that ends, ends the wait for all
// calls.
func (l *Locker) Close(ctx context.Context) error {
	err := l.locks.Close(ctx)
	if l.base.observer != nil {
		l.calls.observed.Await(func() {}, observerWait) // the losses that Close has caused
	}
	return err
}

// serves returns an error for a lock that the store never gives.
func (l *Locker) serves(c *config) error {
	return l.limits(driver.Hold{Kind: c.terms.Kind, TTL: c.terms.Lease, Line: c.terms.Line})
}

func (l *Locker) limits(h driver.Hold) error {
	if s, ok := l.store.(driver.Limited); ok {
		return s.Serves(h)
	}
	return nil
}

// callConfig is the configuration of a call; without options it is the
// locker's own, not a copy.
func (l *Locker) callConfig(opts []Option) (*config, error) {
	if len(opts) == 0 {
		return &l.base, nil
	}
	return l.base.forCall(opts)
}
