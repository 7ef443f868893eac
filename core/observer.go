package core

import (
	"context"
	"time"
)

// Observer is told what happens to locks, for traces, metrics and alerts. Set
// it with WithObserver; package otellock is the one for OpenTelemetry. Its
// methods, and the functions of its observations, are called from many
// goroutines and must return quickly.
//
// A panic of Start, Acquired, Released, Disordered, Rejected, Bypassed or Decided
// reaches the caller whose operation it is, after the locks of that operation have
// been released. Lost and Renewed are called where a loss or a renewal is found,
// mostly on goroutines of the library: their panics are logged through slog.Default
// with the stack, at most once a second, and end there.
type Observer interface {
	// Start is called when a lock is asked for. The context it returns is
	// used for the acquisition; the handler's context derives from the
	// caller's.
	Start(ctx context.Context, op Operation) (context.Context, Observation)
}

// Operation says what is about to happen.
type Operation struct {
	// Rule is the name of the rule that asked (Name), a label of low
	// cardinality; empty for a lock taken without a rule and a name.
	Rule string
	// Keys are the keys asked for. They identify users: hash them before they
	// leave the process.
	Keys []string
	// Wait is how long the caller is ready to wait: 0 not at all, negative
	// until its context ends.
	Wait time.Duration
	// Waiters is how many callers of this process wait for the first key.
	Waiters int
	// Unlocked says that no lock is asked for: a guard tells of a request that
	// it rejects, or lets through without its lock (after an acquisition that
	// failed, which had an observation of its own), or an idempotent endpoint
	// of one that it has dealt with. Of such an observation Rejected, Bypassed
	// or Decided is called, and nothing else.
	Unlocked bool
}

// Observation is a set of functions that are called as an operation goes on.
// Each may be nil, which costs nothing.
type Observation struct {
	// Acquired ends every acquisition, granted or not, exactly once.
	Acquired func(Acquired)
	// Released is called when a lease that Acquired granted is released: once,
	// or never if nobody releases it. The leases of re-entered locks are
	// released one by one.
	Released func(Released)
	// Renewed is called after each renewal of a lock of the lease.
	Renewed func(Renewed)
	// Lost is called when a lock of the lease is lost while it is held. Since a
	// loss ends the lease's context first, Released can be called before it,
	// and where callers wait in a queue even Acquired. Each lock is lost at
	// most once, and not with Released.Lost besides.
	Lost func(Loss)
	// Disordered is called when a lock was asked for that sorts before one
	// that the context already holds: two such callers can wait for each
	// other. See LockAll.
	Disordered func(key, held string)
	// Bypassed is called when a guard lets a handler run without its lock
	// because it was told to fail open. Nothing else is called then.
	Bypassed func(err error)
	// Rejected is called when a guard refuses a request before it asks for
	// the lock, since no key could be made of it or its principal is over its
	// limit (PerPrincipal). Nothing else is called then.
	Rejected func(err error)
	// Decided is called by package idempotency, once for each request to an
	// idempotent endpoint that is not passed through, when it is known how the
	// request is answered. Nothing else is called then.
	Decided func(Decided)
}

// Decided says how a request to an idempotent endpoint was dealt with.
type Decided struct {
	// Outcome says in one word what happened: a label of low cardinality.
	Outcome DecidedOutcome
	// Reason is why the request was refused; empty if it was not.
	Reason Reason
	// Generation is 1 when the handler ran for the first time, more when it ran
	// again after a process that had begun the request was heard of no more,
	// and 0 when it did not run.
	Generation int64
	// Waited is how long the request waited until it was decided that its
	// handler may run, or how else it is answered.
	Waited time.Duration
	// Err is what went wrong, if anything: for a request that was refused why,
	// for one that ran why its response could not be stored. It does not hold
	// the idempotency key.
	Err error
}

// DecidedOutcome is what became of a request to an idempotent endpoint.
type DecidedOutcome string

// The outcomes.
const (
	// DecidedStored: the handler ran and its response was stored.
	DecidedStored DecidedOutcome = "stored"
	// DecidedPending: the handler ran and its response was sent, but the store
	// did not confirm that it has it; that goes on in the background.
	DecidedPending DecidedOutcome = "pending"
	// DecidedReleased: the handler ran and failed; the next request runs it
	// again.
	DecidedReleased DecidedOutcome = "released"
	// DecidedReplayed: the stored response was sent.
	DecidedReplayed DecidedOutcome = "replayed"
	// DecidedRefused: the request was refused.
	DecidedRefused DecidedOutcome = "refused"
	// DecidedUnknown: the handler ran and failed after its claim or its lock
	// was lost; nothing was stored, and the claim is left to lapse.
	DecidedUnknown DecidedOutcome = "unknown"
)

// Acquired says how an acquisition ended.
type Acquired struct {
	// Err is nil when the lock was granted.
	Err error
	// Waited is the time from the call to the outcome.
	Waited time.Duration
	// Contended says that the lock was not free at once.
	Contended bool
	// Attempts is how many requests to the store this caller made itself:
	// none when the lock was handed over in the process or re-entered.
	Attempts int
	// Token is the fencing token of the (first) key.
	Token int64
	// Reentered says that a hold was added to a lock the context had already.
	Reentered bool
}

// Released says how a hold ended.
type Released struct {
	// Err is what Lease.Release returned.
	Err error
	// Held is the time from the grant to the release.
	Held time.Duration
	// Took is how long the release itself took.
	Took time.Duration
	// HandedOver says that the lock went to a waiter of this process.
	HandedOver bool
	// Lost describes the loss, if it was the release that found a lock lost:
	// somebody else may have held it since. Nil when none was lost, or when
	// Observation.Lost tells of it. Of several it is the first by key.
	Lost *Loss
}

// Renewed says how a renewal ended.
type Renewed struct {
	// Key is the lock's key. It identifies users: hash it before it leaves
	// the process.
	Key string
	// Err is nil when the lease was extended, or found to be held.
	Err error
	// Took is how long it took.
	Took time.Duration
}
