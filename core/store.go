package core

import (
	"context"
	"time"
)

// Store is a backend that keeps locks: one lock per key, held by an owner, for
// a time. The lock logic (queueing, renewal, hand-off, reentrancy, clean-up)
// is above it and the same for all; a store only has to make each of its
// requests atomic and idempotent for the request's owner, so that repeating
// one whose reply was lost changes nothing.
//
// A Store is safe for concurrent use. The package core/redisstore is the Store
// on Redis.
type Store interface {
	// Acquire makes one try to take a lock and never waits for its holder. A
	// try that finds the lock held by its own owner succeeds, returns the
	// token stored with it and leaves its expiry alone.
	//
	// A store may repeat a request that failed on the way, within
	// AcquireRequest.Deadline. When ctx ends or the deadline passes before the
	// outcome is known, Acquire returns an error that matches ErrPending at
	// once, and calls AcquireRequest.Late exactly once, from any goroutine,
	// with what it would have returned. In every other case Late is never
	// called.
	//
	// Held by somebody else is not an error but a Reply. Errors match
	// ErrUnavailable, ErrNotReady or ErrNotReplicated.
	Acquire(ctx context.Context, req AcquireRequest) (Reply, error)

	// Renew extends leases, and calls done exactly once for each, in any
	// order, from any goroutine, with its index and its outcome: nil,
	// ErrNotOwner, or a failure on the way; contended says that other lockers
	// wait for the lock. It returns when all have been reported, which after
	// ctx ends is soon. Leases on different servers do not delay each other.
	Renew(ctx context.Context, batch []Renewal, done func(i int, contended bool, err error))

	// Release gives up the lock if it belongs to the owner, and wakes who
	// waits. It retries until ReleaseRequest.Deadline what failed on the way;
	// "not the owner" after a try of unknown outcome counts as released. It
	// returns ErrNotOwner when the lock is not the owner's, else
	// ErrUnavailable or ErrNotReady. The context carries values only: a
	// release must not fail because a client has gone.
	Release(ctx context.Context, req ReleaseRequest) error

	// Watch calls wake when the lock of the key may have become free: when it
	// was released, or when the store cannot be sure that it was not (after a
	// reconnect, or because the watch began later than since, the time at
	// which the caller last saw the lock held). It returns at once. The
	// returned function ends the watch; it waits for no call of wake.
	Watch(key string, since time.Time, wake func(Signal)) (stop func())
}

// AcquireRequest asks for a lock.
type AcquireRequest struct {
	// Key names the lock.
	Key string
	// Owner is who shall hold it: unique, never used again after a release.
	Owner string
	// TTL is the lease, counted by the store from the moment it grants it.
	TTL time.Duration
	// Waiter, unless empty, is entered into the lock's list of waiting
	// lockers when the lock is held by another owner.
	Waiter string
	// Rest is a list of waiting lockers (see Signal.Next) that is kept with
	// the lock when it is granted.
	Rest string
	// Deadline is when the caller stops waiting for the reply; zero is never.
	Deadline time.Time
	// Late receives an outcome that came too late for Acquire to return.
	Late func(Reply, error)
}

// Reply is the outcome of a try.
type Reply struct {
	// Granted says that the owner holds the lock.
	Granted bool
	// Token is the fencing token of the grant: greater than every token of
	// the key before it.
	Token int64
	// Holder is the owner that holds the lock instead, if known.
	Holder string
	// TTL is what remains of the holder's lease, negative if unknown.
	TTL time.Duration
	// Listed says that AcquireRequest.Waiter is in the lock's list, so that its
	// release will be announced.
	Listed bool
	// Sent is when the first try of this request was sent. The lease counts
	// from there (Redlock, "How to do it", step 3), which is before the
	// server's own count by the time that the request travelled.
	Sent time.Time
	// Ambiguous says that a try of this request may still be executed later,
	// since its reply was never seen. It is also meaningful beside an error.
	Ambiguous bool
}

// Renewal asks to extend one lease.
type Renewal struct {
	Key   string
	Owner string
	// TTL is what the lease is extended to, never shortened; zero only checks
	// that the owner still holds the lock.
	TTL time.Duration
	// Asked says that a caller waits for it, and not the watchdog, whose
	// renewals must not have to wait for anything else.
	Asked bool
}

// ReleaseRequest gives up a lock.
type ReleaseRequest struct {
	Key   string
	Owner string
	// Token is the highest fencing token given out under this owner.
	Token int64
	// TTL is the lease that the lock had, which bounds how long the store
	// remembers Token.
	TTL time.Duration
	// Remember asks the store to note Token: it was not minted by the store, or
	// so long ago that the store may have forgotten it.
	Remember bool
	// Waiter, unless empty, is entered at the end of the list of waiting
	// lockers: the releasing process wants the lock again.
	Waiter string
	// Deadline is after when nothing is tried again.
	Deadline time.Time
}

// Signal tells a waiting locker that a lock may be free.
type Signal struct {
	// Next names the waiting lockers in the order of their turns, separated
	// by commas. The first may try at once, the others after a grace. Empty
	// means that the store does not know: look at once.
	Next string
}
