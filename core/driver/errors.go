package driver

import (
	"errors"
	"fmt"
)

// The errors of a [Store]. A store wraps them with what happened; the lock
// matches them with errors.Is. Package core exports the errors that a user of locks can
// meet, under the same names.
var (
	// ErrUnavailable says that the store did not answer, or that its answer was
	// of no use. It is not known which owner holds the lock.
	ErrUnavailable = errors.New("interlock: lock store unavailable")

	// ErrNotReady says that the store answered that it cannot serve the key at
	// this moment (Redis: LOADING, TRYAGAIN, CLUSTERDOWN and the like), or with an
	// error that says nothing about the next try (an internal error). The request was not
	// executed, unless [Reply.Ambiguous] is true. The lock sends it again after a pause; if
	// that does not help, its caller gets an error that also matches ErrUnavailable.
	ErrNotReady = errors.New("interlock: lock store not ready")

	// ErrKeyOccupied says that the lock's place in the store has a value that is no
	// lock. No later try succeeds as long as it is there.
	ErrKeyOccupied = errors.New("interlock: the lock's key is occupied by something else")

	// ErrNotReplicated says that too few replicas acknowledged the lock in
	// time. The lock releases it again.
	ErrNotReplicated = errors.New("interlock: lock not acknowledged by enough replicas")

	// ErrNotOwner says that the owner of the request does not hold the lock. The
	// caller of a lease gets core.ErrLost, in an error that also matches
	// ErrNotOwner.
	ErrNotOwner = errors.New("interlock: not the owner of the lock")

	// ErrDeleted, ErrTakenOver and ErrRevoked match ErrNotOwner. A store that knows the
	// difference returns one: the lock is free, or another owner holds it, or an operator
	// has released it, whether another owner holds it by now or not. ErrPassedOn is for a
	// request with [AcquireRequest.From] alone: that owner has handed the lock on.
	ErrDeleted   = fmt.Errorf("%w: no owner holds it", ErrNotOwner)
	ErrTakenOver = fmt.Errorf("%w: another owner holds it", ErrNotOwner)
	ErrRevoked   = fmt.Errorf("%w: an operator has released it", ErrNotOwner)
	ErrPassedOn  = fmt.Errorf("%w: it has handed the lock on", ErrNotOwner)

	// ErrPending is returned by [Store.Acquire] when its caller left before the
	// outcome of the request was known.
	ErrPending = errors.New("interlock: outcome not yet known")

	// ErrRefused says that the server has answered and does not execute the request, for a reason that does not
	// pass: a missing right, a wrong password. A store need not return it.
	ErrRefused = errors.New("interlock: the server refuses the request")

	// ErrIncomplete says that a list lacks something: a server of several did not answer, or a lock
	// cannot be read. All others were returned before. The error wraps the cause.
	ErrIncomplete = errors.New("interlock: a list is incomplete")

	// ErrConfig says that an option has a value that cannot work. The text names the option
	// and the accepted values.
	ErrConfig = errors.New("interlock: bad configuration")
)
