package lock

import (
	"errors"
	"fmt"

	"github.com/interlock-go/interlock/core/driver"
)

// The errors of locks, in addition to the errors of a store. Package core exports and
// explains them.
var (
	ErrHeld       = errors.New("interlock: lock is held elsewhere")
	ErrFull       = fmt.Errorf("%w: all permits are taken", ErrHeld)
	ErrQueueFull  = errors.New("interlock: too many waiters for the lock")
	ErrSuperseded = fmt.Errorf("%w: a newer caller takes the place of this one", ErrHeld)
	ErrLost       = errors.New("interlock: lease lost")
	ErrMaxHold    = errors.New("interlock: maximum hold reached")
	ErrReleased   = errors.New("interlock: lease released")
	ErrClosed     = errors.New("interlock: locker closed")
)

// Why a store that may be well counts as unavailable, or a lease as lost. Each is the last that
// an error wraps: logs have the root cause (observe.RootCause), and what wraps it names the key.
var (
	errNoAnswer  = errors.New("no answer within the wait")
	errSilent    = errors.New("no answer until the caller gave up")
	errReleasing = errors.New("no answer to the release of this process")
	errTooLate   = errors.New("a grant came after the end of its lease")
	errOrphan    = errors.New("a late request of this process holds it")
	errSuspended = errors.New("the machine was suspended, and the lease not confirmed since")
	errDeadline  = errors.New("released after its deadline")
)

// Reason says why a lease was lost; zero is no loss.
type Reason int8

// The reasons for a loss. Package core exports and explains them.
const (
	Expired Reason = iota + 1
	Deleted
	TakenOver
	Revoked
	NotOwner
	Unavailable
	MaxHold
	Closed
)

// reasonOf is the reason for an error that matches driver.ErrNotOwner.
func reasonOf(err error) Reason {
	switch {
	case errors.Is(err, driver.ErrTakenOver):
		return TakenOver
	case errors.Is(err, driver.ErrDeleted):
		return Deleted
	case errors.Is(err, driver.ErrRevoked):
		return Revoked
	}
	return NotOwner
}

// denied reports whether the store itself says that the owner does not hold the
// lock. Then there is nothing of the owner in the store.
func (r Reason) denied() bool {
	return r == NotOwner || r == Deleted || r == TakenOver || r == Revoked
}

// causeOfLoss is the cause of the context of a lost lease.
func causeOfLoss(err error) error {
	if errors.Is(err, driver.ErrNotOwner) {
		return ErrLost
	}
	return err
}
