package core

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/interlock-go/interlock/core/internal/carrier"
	"github.com/interlock-go/interlock/core/internal/clock"
	"github.com/interlock-go/interlock/core/internal/lock"
	"github.com/interlock-go/interlock/core/observe"
)

// Lease is a hold on one lock ([Locker.Lock]) or on several ([Locker.LockAll]). It
// is valid until it is released or lost. [Lease.Context] ends in either case. The
// fencing token ([Lease.Token]) protects writes that the context cannot stop.
//
// Re-entry follows the context. To lock a key again under [Lease.Context] adds a hold
// with another Lease. The lock is released with the last hold, in any order. The
// context is therefore the right to enter: goroutines that share it do not exclude each
// other. The options [TTL], [Watchdog] and [MaxHold] of the inner call do not apply.
//
// A Lease is safe for concurrent use.
//
// [LeaseFromContext] returns a nil *Lease where no lock is held. A nil *Lease holds
// nothing: [Lease.Token] returns 0, which a fence refuses; [Lease.Err],
// [Lease.Check] and [Lease.Release] return [ErrNoLease]; [Lease.Key] returns an
// empty text, [Lease.Keys] no keys, [Lease.Deadline] the zero time and
// [Lease.Context] returns [context.Background].
type Lease struct {
	config *config // of the call that took it
	parent context.Context

	// The locks, unless more has several. The lease took a lock if it is the lock's Holder,
	// and re-entered the lock otherwise.
	one [1]*lock.Waiter
	own lock.Waiter // the only lock of most leases, saves an allocation

	// A hand-off allocates a lease and nothing else, so its size decides how often the
	// garbage collector runs while a process is busy with one key.
	more atomic.Pointer[more]

	mu     sync.Mutex
	left   int32 // own holds that are not over
	taking bool  // more holds may come (LockAll)
	ended  ending
	stage  stage

	// The standard library's context inside is made when a caller first asks for its
	// channel; many handlers never do.
	std atomic.Pointer[standard]
}

// more has the fields that most leases do not need.
type more struct {
	// Unchanged once other goroutines have the lease.
	observed bool
	obs      observe.Observation
	request  *guarded // of the parent; nil: of no guard

	several []*lock.Waiter // of LockAll, sorted by key

	// Guarded by the mutex of the lease.
	wanted   chan struct{} // made by the first call of Wanted
	told     bool          // wanted is closed
	result   error         // of the release
	parted   bool          // Release was called while the lease was handed over
	released chan struct{} // closed after the release; made by a second call that waits for it
}

// stage is the progress of the release of a lease.
type stage int8

const (
	unreleased stage = iota
	releasing
	released
	handing
	handedOver
)

// locks are the locks of the lease.
func (lease *Lease) locks() []*lock.Waiter {
	if lease == nil {
		return nil
	}
	if m := lease.more.Load(); m != nil && m.several != nil {
		return m.several
	}
	return lease.one[:]
}

// observation has the data for the observer of the lease; nil: there is no observer.
func (lease *Lease) observation() *observe.Observation {
	if m := lease.more.Load(); m != nil && m.observed {
		return &m.obs
	}
	return nil
}

// needMore returns lease.more. Called with lease.mu held, or while no other goroutine has the lease.
func (lease *Lease) needMore() *more {
	m := lease.more.Load()
	if m == nil {
		m = new(more)
		lease.more.Store(m)
	}
	return m
}

// outer is the enclosing lease, or nil.
func (lease *Lease) outer() *Lease { return LeaseFromContext(lease.parent) }

// around is outer. hidden says that the context does not show that lease, only the request
// that the context carries does.
func (lease *Lease) around() (outer *Lease, hidden bool) {
	if outer, _ = lease.parent.Value(leaseKey{}).(*Lease); outer != nil {
		return outer, false
	}
	outer, _ = carrier.Hidden(lease.parent, leaseKey{}).(*Lease)
	return outer, outer != nil
}

// took reports whether the lease took the lock itself, and did not re-enter it.
func (lease *Lease) took(w *lock.Waiter) bool { return w.Holder == lock.Holder((*holder)(lease)) }

// Key returns the key of the lock. Of several locks it returns the first key in
// sorted order.
func (lease *Lease) Key() string {
	if lease == nil {
		return ""
	}
	return lease.locks()[0].Key()
}

// Keys returns the keys of all locks of the lease, sorted. The caller may change
// the slice.
func (lease *Lease) Keys() []string {
	all := lease.locks()
	keys := make([]string, len(all))
	for i, w := range all {
		keys[i] = w.Key()
	}
	return keys
}

// Token returns the fencing token. It is greater than the token of every earlier
// grant of the key, by any process. It protects only a resource that remembers the
// greatest token it has seen and refuses smaller ones; see package core/fencing. A
// re-entry keeps the token. Of several locks it is the token of [Lease.Key]; see
// [Lease.TokenFor].
//
// The token of a shared hold lies between the tokens of the exclusive holders before
// and after it ([Shared]). Tokens of permits only differ from each other: give them to
// no fence ([Permits]).
func (lease *Lease) Token() int64 {
	if lease == nil {
		return 0
	}
	return lease.locks()[0].Token()
}

// TokenFor returns the fencing token of one key of the lease, and true. If the
// lease does not hold the key, it returns 0 and false.
func (lease *Lease) TokenFor(key string) (int64, bool) {
	for _, w := range lease.locks() {
		if w.Key() == key {
			return w.Token(), true
		}
	}
	return 0, false
}

// Deadline returns until when the lease is valid without another renewal. It is the send time of
// the last confirmed acquire or renewal, plus the lease, less a margin for clock drift (1 % of
// the lease and 2 ms), on the monotonic clock. The rule comes from the Redlock description
// (redis.io, "Distributed Locks with Redis"). Of several locks it is the earliest. A renewal
// moves it.
//
// A lease that began with an offer of the store, by the message of a release
// (Offer in package driver), is valid for 1.5 to 3 s at first. Its first renewal follows after
// 10 ms, or with [Lease.Check], and makes it as long as others. With [WholeLease] no lease
// begins so.
func (lease *Lease) Deadline() time.Time {
	if lease == nil {
		return time.Time{}
	}
	first := clock.Never
	for _, w := range lease.locks() {
		first = min(first, lease.config.locker.locks.Deadline(w))
	}
	return lease.config.locker.locks.Clock.Time(first)
}

// Err returns nil while the lease is valid. It returns an error that matches
// [ErrLost] or [ErrMaxHold] when the lease is valid no longer, and [ErrReleased]
// after a [Lease.Release] in time ([ErrHandedOver] after a [Lease.HandOver]).
//
// Err reads the clock itself, so its answer is right even if the scheduler ended
// the context late. After the machine was suspended (the wall clock ran ahead of
// the monotonic clock) Err returns ErrLost until a renewal has confirmed the lease.
// [Lease.Check] asks for that confirmation.
func (lease *Lease) Err() error {
	if lease == nil {
		return ErrNoLease
	}
	locks := lease.config.locker.locks
	now, ahead := locks.Clock.Read()
	for _, w := range lease.locks() {
		if err := locks.Check(w, now, ahead); err != nil {
			return err
		}
	}
	lease.mu.Lock()
	defer lease.mu.Unlock()
	switch lease.stage {
	case handing, handedOver:
		return ErrHandedOver
	case releasing, released:
		return ErrReleased
	case unreleased:
	}
	return nil
}

// Check asks the store whether the locks are still held, and renews them unless
// their lease is fixed ([TTL]). Call it just before a commit that must not happen
// without the lock. After the store's answer one round trip of doubt remains, which
// only a fencing token removes.
//
// For each lock Check waits for the store for at most a sixth of the lease. It
// returns nil if all locks are held, else what [Lease.Err] returns, or an error
// that matches [ErrUnavailable] if the store did not answer, or [ErrKeyOccupied].
func (lease *Lease) Check(ctx context.Context) error {
	if lease == nil {
		return ErrNoLease
	}
	for _, w := range lease.locks() {
		if err := lease.config.locker.locks.Confirm(ctx, w); err != nil {
			return lease.handedBefore(err)
		}
	}
	return lease.Err()
}

// Release gives up this hold. With the last hold of a lock the lock goes to the
// next waiter of this process, or back to the store.
//
// Release uses only the values of ctx: it works also when ctx has ended. It waits for
// the store for at most 2 s. After that the locker releases the remaining locks in the
// background. Release may be called more than once; every call returns the result of
// the first.
//
// Release returns an error that matches [ErrLost] (or [ErrMaxHold], if that ended
// the lease) if this process did not hold the lock any more: another process may
// have held it meanwhile. [ErrUnavailable] alone means that the lock ends with its
// lease at the latest. ErrUnavailable together with ErrLost means that the lease
// had ended by this process's clock, and that the store could not be asked. These
// errors are no reason to fail a request that has succeeded, and a [Guard] does not
// fail it.
func (lease *Lease) Release(ctx context.Context) error {
	if lease == nil {
		return ErrNoLease
	}
	return lease.release(ctx, false)
}

// release is [Lease.Release]. If behind is set, it does not wait for the store.
func (lease *Lease) release(ctx context.Context, behind bool) error {
	lease.mu.Lock()
	first := lease.stage == unreleased
	switch lease.stage {
	case unreleased:
		lease.stage = releasing
	case handing:
		lease.needMore().parted = true // the context ends when the store has answered
	case handedOver:
		defer lease.end(ErrHandedOver)
	case releasing, released:
	}
	lease.mu.Unlock()
	switch m := lease.more.Load(); {
	case !first && behind:
		return nil // the handler has released it, or does so at this moment
	case !first:
		return lease.firstResult()
	case behind:
		lease.releaseBehind(ctx)
		return nil
	case m != nil && m.observed && m.obs.Released != nil:
		return lease.releaseObserved(ctx, nil)
	}
	_, _, err := lease.releaseAll(ctx, nil)
	return err
}

// releaseObserved is the first call of release, and tells the observer, if there is one.
// parted, unless nil, has what this process did already, lock by lock.
func (lease *Lease) releaseObserved(ctx context.Context, parted []lock.Parting) error {
	clock := &lease.config.locker.locks.Clock
	begin := clock.Now()
	handed, lost, err := lease.releaseAll(ctx, parted)
	if m := lease.more.Load(); m != nil && m.observed && m.obs.Released != nil {
		r := observe.Released{
			Err: err, Held: begin.Sub(lease.locks()[0].Since()), Took: clock.Now().Sub(begin), HandedOver: handed, Lost: lost,
		}
		c := &lease.config.locker.calls
		c.released.Await(func() { c.told("Observation.Released", func() { m.obs.Released(r) }) }, observerWait)
	}
	return err
}

// firstResult returns the result of the first call of Release, which it waits for.
func (lease *Lease) firstResult() error {
	lease.mu.Lock()
	defer lease.mu.Unlock()
	if lease.stage == releasing || lease.stage == handing {
		m := lease.needMore()
		if m.released == nil {
			m.released = make(chan struct{})
		}
		lease.mu.Unlock()
		<-m.released
		lease.mu.Lock()
	}
	if m := lease.more.Load(); m != nil {
		return m.result
	}
	return nil
}

// errNoReturn is the result of further calls of Release after a panic of the store.
var errNoReturn = fmt.Errorf("%w: %w", ErrUnavailable, errors.New("the store panicked in the release"))

// releaseAll gives up one hold of each lock of the lease, and keeps the result for further
// calls of Release.
func (lease *Lease) releaseAll(ctx context.Context, parted []lock.Parting) (handed bool, lost *Loss, err error) {
	err = errNoReturn
	defer func() {
		lease.mu.Lock()
		defer lease.mu.Unlock()
		lease.stage = released
		if err != nil {
			lease.needMore().result = err
		}
		if m := lease.more.Load(); m != nil && m.released != nil {
			close(m.released)
		}
	}()
	all := lease.locks()
	if len(all) == 0 {
		return false, nil, nil // LockAll got none
	}
	if len(all) == 1 { // no slices, no Join
		return lease.releaseOne(ctx, all, parted, 0)
	}
	errs := make([]error, len(all))
	losses := make([]*Loss, len(all))
	var wg sync.WaitGroup
	for i := range all {
		wg.Go(func() { _, losses[i], errs[i] = lease.releaseOne(ctx, all, parted, i) })
	}
	wg.Wait()
	return false, cmp.Or(losses...), errors.Join(errs...)
}

// releaseOne gives up the hold of all[i]. It returns the loss if the lease was lost
// and that was not told before; then the observer gets it with the release.
func (lease *Lease) releaseOne(ctx context.Context, all []*lock.Waiter, parted []lock.Parting, i int) (handed bool, lost *Loss, err error) {
	w, locks := all[i], lease.config.locker.locks
	var p lock.Parting
	if parted != nil {
		p = parted[i]
	} else {
		locks.Part(w, &p)
	}
	r := locks.Send(ctx, w, &p)
	if r.Lost != 0 {
		lost = (*Lease)(w.Holder.(*holder)).lostAtRelease(w, reasons[r.Lost]) //nolint:forcetypeassert // there is no other
	}
	return r.HandedOff, lost, r.Err
}
