package core

import (
	"errors"

	"github.com/interlock-go/interlock/core/driver"
	"github.com/interlock-go/interlock/core/internal/lock"
)

// The errors of this package. Each names one situation. Match them with
// [errors.Is], because a returned error also carries the key and the cause. If the
// caller's own context has ended, the error matches [context.Cause] of that context
// instead. An error that began in the store also matches the error of the store; see
// the errors of package core/driver. A caller seldom needs these: the reason of a
// [Loss] has the answer of the store.
var (
	// ErrHeld says that another holder had the lock for as long as the caller was
	// ready to wait ([Wait]). The caller holds nothing.
	ErrHeld = lock.ErrHeld

	// ErrQueueFull says that [MaxWaiters] callers of this process, or one caller under [OneWaiter], already waited
	// for the key. It also matches [ErrHeld].
	ErrQueueFull = lock.ErrQueueFull

	// ErrSuperseded says that a newer caller has come ([Newest]). A caller that waits gets it
	// as its error; the context of a holder ends with it as cause. It also matches [ErrHeld].
	ErrSuperseded = lock.ErrSuperseded

	// ErrHeldByCaller says that the caller of a request, which waits for its answer, holds
	// the lock that the request needs ([HeldHeader]). It does not match [ErrHeld]: no later
	// try gets the lock, as long as the caller waits.
	ErrHeldByCaller = errors.New("interlock: the caller of the request holds the lock")

	// ErrUnavailable says that the store could not be reached or did not answer. It
	// is not known which owner holds the lock; the caller does not hold it.
	ErrUnavailable = driver.ErrUnavailable

	// ErrKeyOccupied says that the key of the lock has a value in the store that is
	// not a lock: another program uses the same prefix. To try again does not help;
	// an operator has to look at the key. It does not match [ErrUnavailable].
	ErrKeyOccupied = driver.ErrKeyOccupied

	// ErrNotReplicated says that too few replicas acknowledged the lock in time.
	// The locker has released it again.
	ErrNotReplicated = driver.ErrNotReplicated

	// ErrLost says that the lease can no longer be trusted: it expired, another
	// process deleted or took the lock, or no renewal succeeded before the
	// deadline. Roll back the work that was done under it.
	ErrLost = lock.ErrLost

	// ErrMaxHold says that the lease was held for as long as [MaxHold] allows. Its
	// context has ended, and the locker renews it no longer.
	ErrMaxHold = lock.ErrMaxHold

	// ErrReleased is the cause of the context of a lease after [Lease.Release].
	ErrReleased = lock.ErrReleased

	// ErrClosed says that the locker is closing and grants no new locks; see
	// [Locker.Close].
	ErrClosed = lock.ErrClosed

	// ErrFull says that all permits of a key were taken for as long as the caller
	// waited ([Permits]). It matches ErrHeld.
	ErrFull = lock.ErrFull

	// ErrUpgrade says that the context holds the key as a shared hold or a permit,
	// and that the caller asked for it in another way. Release it first.
	ErrUpgrade = errors.New("interlock: the context holds the key in another way, which cannot be changed")

	// ErrNoLease says that a context or a call needs a lease and has none: [Check],
	// [Commit], and the methods of a nil [Lease].
	ErrNoLease = errors.New("interlock: no lease in the context")

	// ErrPrincipalLimit says that the principal of a request holds, or waits for,
	// as many locks as [PerPrincipal] allows.
	ErrPrincipalLimit = errors.New("interlock: principal is over its limit")

	// ErrKey says that a key is empty or longer than 512 bytes, or that a request
	// does not carry a usable value for a part of the key.
	ErrKey = errors.New("interlock: bad lock key")

	// ErrConfig says that an option has a value that cannot work. The text names the option
	// and the accepted values.
	ErrConfig = driver.ErrConfig
)
