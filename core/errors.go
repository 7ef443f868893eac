package core

import (
	"errors"

	"github.com/interlock-go/interlock/core/driver"
)

// The error set. Each names one situation and calls for one reaction; match
// them with errors.Is, since what is returned also carries the key and the
// cause. A caller whose own context ended gets an error that matches
// context.Cause of that context instead of any of these.
var (
	// ErrHeld says that somebody else held the lock for as long as the caller
	// was ready to wait. Nothing was taken.
	ErrHeld = errors.New("interlock: lock is held elsewhere")

	// ErrQueueFull says that MaxWaiters callers of this process were already
	// waiting for the key. It also matches ErrHeld.
	ErrQueueFull = errors.New("interlock: too many waiters for the lock")

	// ErrUnavailable says that the store could not be reached or did not
	// answer, so that it is not known who holds the lock. The caller does not.
	ErrUnavailable = driver.ErrUnavailable

	// ErrNotReady says that the store answered that it cannot serve the key
	// at this moment (Redis: LOADING, TRYAGAIN, CLUSTERDOWN and the like). A
	// store returns it; the lock retries it, and what reaches a caller in the
	// end also matches ErrUnavailable.
	ErrNotReady = driver.ErrNotReady

	// ErrKeyOccupied says that the lock's key in the store has a value that is no
	// lock: another program uses the same prefix. To try again is of no use; an
	// operator has to look at the key. It does not match ErrUnavailable.
	ErrKeyOccupied = driver.ErrKeyOccupied

	// ErrNotReplicated says that too few replicas acknowledged the lock in
	// time. It was released again.
	ErrNotReplicated = driver.ErrNotReplicated

	// ErrLost says that the lease can no longer be trusted: it expired, was
	// deleted or taken over, or could not be renewed before its deadline. Work
	// done under it must be rolled back.
	ErrLost = errors.New("interlock: lease lost")

	// ErrNotOwner says that the store does not know the caller as the holder.
	// A store returns it; a Lease turns it into ErrLost, which it also matches.
	ErrNotOwner = driver.ErrNotOwner

	// ErrDeleted and ErrTakenOver are ErrNotOwner, which they match, from a
	// store that can tell more: nobody holds the lock, or somebody else does.
	ErrDeleted   = driver.ErrDeleted
	ErrTakenOver = driver.ErrTakenOver

	// ErrMaxHold says that the lease was held for as long as MaxHold allows.
	// Its context has ended and it is no longer renewed.
	ErrMaxHold = errors.New("interlock: maximum hold reached")

	// ErrReleased is the cause with which the context of a lease ends when
	// the lease was released in the ordinary way.
	ErrReleased = errors.New("interlock: lease released")

	// ErrClosed says that the locker is closing and grants no new locks.
	ErrClosed = errors.New("interlock: locker closed")

	// ErrNoLease says that a context runs under no lease, where one is asked
	// for (Check, Commit).
	ErrNoLease = errors.New("interlock: no lease in the context")

	// ErrPrincipalLimit says that the principal of a request holds, or waits
	// for, as many locks as PerPrincipal allows.
	ErrPrincipalLimit = errors.New("interlock: principal is over its limit")

	// ErrKey says that a key is empty or too long, or that a request does not
	// carry a usable value for a part of it.
	ErrKey = errors.New("interlock: bad lock key")

	// ErrConfig says that an option has a value that cannot work. The text
	// says which, and what is accepted.
	ErrConfig = driver.ErrConfig

	// ErrPending is returned by a Store whose caller left before the outcome
	// of its request was known; see Store.Acquire.
	ErrPending = driver.ErrPending
)
