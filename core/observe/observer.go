package observe

import (
	"context"
	"time"
)

// Observer receives the events of locks, for traces, metrics and alerts. Set it with
// core.WithObserver. An idempotent endpoint under a rule takes the observer of the rule's
// locker; idempotency.WithObserver sets another, and sets one for an endpoint without a rule.
// Package otellock is the Observer for OpenTelemetry. Its method, and the functions of its
// observations, are called from many goroutines at the same time and should return quickly.
//
// Start, Acquired, Disordered, Rejected, Bypassed and Decided run on the goroutine of the
// caller of that operation. A function that blocks there keeps that caller, and with it a
// granted lock. The lease of the lock is renewed or ends as under a handler. A panic reaches
// the caller, after the locks of the operation have been released.
//
// Lost, Renewed, Gathered and Released run on goroutines of the locker. No lease depends on these.
// Lost, Renewed and Gathered are called one after the other in the order of the events of a locker. A release
// waits until Released has returned, but no longer than 250 ms. Calls wait while earlier ones
// do not return, in a bounded number; further calls are dropped and counted (Locker.Undelivered
// of package core). Panics are logged through [slog.Default] with the stack, at most once a
// minute, and end there.
type Observer interface {
	// Start is called when a caller asks for a lock. The acquisition uses the
	// context that Start returns. The context of the handler derives from the
	// caller's.
	Start(ctx context.Context, op Operation) (context.Context, Observation)
}

// Operation describes an operation that is about to begin.
type Operation struct {
	// Rule is the name of the guard, or of the lock (core.Name): a text with few
	// different values. It is empty for a lock that was taken without a guard and a
	// name.
	Rule string
	// Kind is the kind of the hold: "exclusive", "shared" (core.Shared) or "permit"
	// (core.Permits). Of a request that a guard rejects or lets through without its lock it
	// is the kind of that lock. It is empty for an idempotent endpoint.
	Kind string
	// AtMost is the number of permits of the key, for the kind "permit".
	AtMost int
	// Keys are the keys that the caller asks for. They identify users: hash them
	// ([Hashed.Hash]) before they leave the process. The observer may write to them.
	Keys []string
	// Wait bounds the wait of the caller: 0 is not at all, a negative
	// value is until its context ends.
	Wait time.Duration
	// MaxHold bounds the hold of the caller (core.MaxHold): 0 is
	// without a bound.
	MaxHold time.Duration
	// Waiters is the number of callers of this process that wait for the first key.
	Waiters int
	// Standby says that the caller waits to lead (core.Lead). It may wait for as long as
	// its process lives, while another process leads, so that the length of the wait says
	// nothing about the lock.
	Standby bool
	// Unlocked says that no lock is asked for. A guard reports a request that it
	// rejects or lets through without its lock (after an acquisition that failed,
	// which had a separate observation). An idempotent endpoint reports a request that it
	// has dealt with. In such an observation Rejected, Bypassed or Decided is called, and
	// nothing else.
	Unlocked bool
}

// Observation is a set of functions that are called as an operation goes on. Each
// may be nil, which costs nothing. The zero value observes nothing.
type Observation struct {
	// Acquired ends every acquisition, granted or not, exactly once.
	Acquired func(Acquired)
	// Released is called when a lease that Acquired granted is released: once, or
	// never if the caller does not release it. The leases of re-entered locks are
	// released one by one. It can be called before a Renewed or a Lost of the same lease.
	Released func(Released)
	// Renewed is called after each renewal of a lock of the lease by the locker. It is not
	// called for a check (Lease.Check of package core): the caller of the check gets the
	// outcome.
	Renewed func(Renewed)
	// Lost is called when a lock of the lease is lost while it is held. A loss ends
	// the context of the lease first, so that Released can be called before Lost,
	// and where callers wait in a queue even Acquired. Each lock is lost at most
	// once: a loss that Lost reports is not in [Released.Lost].
	Lost func(Loss)
	// Disordered is called when a caller asks for a key that sorts before a key
	// that its context already holds: two such callers can wait for each other. See
	// Locker.LockAll of package core.
	Disordered func(key, held string)
	// Bypassed is called when a guard lets a handler run without its lock, or an
	// idempotent endpoint lets it run without its record, because it has
	// core.FailOpen (idempotency.FailOpen). Nothing else is called then.
	Bypassed func(err error)
	// Rejected is called when a guard refuses a request before it asks for the
	// lock: no key could be made of the request, or its principal is over its limit
	// (core.PerPrincipal). Nothing else is called then.
	Rejected func(err error)
	// Gathered is called after the section of a batch (package gather), before Released. The keys
	// and the rule are those of the lock of the section.
	Gathered func(Gathered)
	// Decided is called by package idempotency when it is known how a request to an
	// idempotent endpoint is answered: once for each request that is not passed
	// through. Nothing else is called then.
	Decided func(Decided)
}

// Gathered describes a batch of package gather.
type Gathered struct {
	// Items is the number of items of the batch.
	Items int
	// Queued is the time from the call of the first item to the beginning of the section.
	Queued time.Duration
	// Took is the duration of the section.
	Took time.Duration
	// Left is the number of items that wait for the next batch.
	Left int
	// Err is the error of the section, of the lost lease too.
	Err error
}

// Decided says how an idempotent endpoint dealt with a request.
type Decided struct {
	// Outcome says in one word what happened. Its values are the constants
	// that begin with Decided.
	Outcome string
	// Reason is the text of the reason.Reason for which the request was refused;
	// empty if it was not.
	Reason string
	// Generation is 1 when the handler ran for the first time. It is more when the
	// handler ran again after the process that had begun the request fell silent.
	// It is 0 when the handler did not run.
	Generation int64
	// Record is the hash of the request's record in logs and in the tool; empty if the
	// request has none.
	Record string
	// Waited is how long the request waited until it was decided that its
	// handler may run, or how else it is answered.
	Waited time.Duration
	// Err is the error, if any: for a refused request the cause of the refusal, for a
	// request after a run of its handler the reason why its response could not be stored. It
	// does not hold the idempotency key.
	Err error
}

// Acquired says how an acquisition ended.
type Acquired struct {
	// Err is nil when the lock was granted.
	Err error
	// Waited is the time from the call to the outcome.
	Waited time.Duration
	// Contended says that the lock was not free at once.
	Contended bool
	// Attempts is the number of requests that this caller itself sent to the store: none when
	// the lock was handed off in the process or re-entered.
	Attempts int
	// Token is the fencing token of the key, or of the first of several keys.
	Token int64
	// Reentered says that the acquisition added a hold to a lock that the context
	// had already.
	Reentered bool
}

// Released says how a hold ended.
type Released struct {
	// Err is the result of Lease.Release.
	Err error
	// Held is the time from the grant to the release.
	Held time.Duration
	// Took is the duration of the release itself.
	Took time.Duration
	// HandedOver says that the lock went to a waiter of this process.
	HandedOver bool
	// Ticket says that the lock was not freed: it is kept for a ticket (core.Lease.HandOver).
	Ticket bool
	// Lost describes the loss, if the release found that a lock was lost: another
	// process may have held it since. It is nil if no lock was lost, or if
	// [Observation.Lost] reports it. Of several locks it is the first by key.
	Lost *Loss
}

// Renewed says how a renewal ended.
type Renewed struct {
	// Key is the lock's key. It identifies users: hash it before it leaves
	// the process.
	Key string
	// Err is nil when the lease was extended, or found to be held.
	Err error
	// Took is its duration.
	Took time.Duration
}
