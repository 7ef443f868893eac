// Package lent has the functions that package core lends to package core/gather. A section of
// many callers needs more than one caller does: it waits with the context of a caller, and runs
// under a context that does not end with that caller.
package lent

import (
	"context"
	"time"
)

// Locks are the locks of a locker under prepared options.
type Locks struct {
	// Wait is the longest wait of a caller for the lock: zero is none, negative until its context
	// ends. Nested replaces it for a caller that holds another lock, if it is shorter.
	Wait, Nested time.Duration
	// MaxWaiters, unless zero, is the maximum number of waiting callers of a key.
	MaxWaiters int
	// Name is the name for observers.
	Name string
	// Observed says that the locker has an observer.
	Observed bool

	// Check returns an error for a key that no store accepts.
	Check func(key string) error
	// Holds reports whether ctx is under a lease of the locker, or belongs to a request with callers
	// that hold locks. Where it is not, Join has no work.
	Holds func(ctx context.Context) (lease, callers bool)
	// Join is for a caller that holds locks: it returns a context that ends with core.ErrHeldByCaller
	// if it holds the lock of key, and the text of the locks for [Locks.Base]. leave must be
	// called when the caller does not wait any more; it reports whether the context has ended so.
	Join func(ctx context.Context, key string) (joined context.Context, held string, leave func() bool)
	// Base returns the context of a section with callers that hold locks, as texts of Join.
	Base func(ctx context.Context, held []string) context.Context
	// Lock takes the lock of a key, and returns a *core.Lease. It waits under ctx for wait, as Wait says.
	Lock func(ctx context.Context, key string, wait time.Duration) (lease any, err error)
	// Detach makes the context of a lease of Lock derive from base. It comes before the first use of
	// the lease.
	Detach func(lease any, base context.Context)
	// Gathered calls the observer of a lease, a *core.Lease, with an observe.Gathered.
	Gathered func(lease, gathered any)
}

// Kept is the error of a section that keeps the lock after its end: package gather takes Err for the
// outcome, and calls Take with the function that releases the lock. Take does not wait.
type Kept struct {
	Err  error
	Take func(release func())
}

// Error implements error.
func (k *Kept) Error() string { return "interlock: the section keeps its lock" }

// Prepare prepares options, which are []core.GatherOption, for a locker, which is a
// *core.Locker. Package core sets it.
var Prepare func(locker, options any) (*Locks, error)
