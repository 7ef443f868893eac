package record

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/interlock-go/interlock/core/internal/carrier"
)

// Unit is a transaction of the database that keeps the records. A handler makes its
// effects in it, and the engine ends it: the effects and the answer are stored
// together, or neither is. Package core/pgstore has the Unit for PostgreSQL.
//
// The engine calls one of the two methods, once, after the handler has ended.
type Unit interface {
	// Commit stores the response in the record, as [Store.Commit] does (also an interim one), and
	// commits the transaction. req has no Release. If the record is another token's, Commit
	// rolls back, and the reply tells what there is.
	//
	// After an error that matches [ErrRolledBack] the transaction has had no effect
	// and will have none. An error that matches [ErrEnded] says that the handler has
	// ended it. After any other error its outcome is not known. Then it
	// must hold, until its outcome is decided, a lock of the database that makes
	// [Store.Claim] and [Store.Abandon] of the record wait: the engine abandons the
	// claim, and that must have no effect if the transaction was committed.
	//
	// Of ctx Commit uses only the values.
	Commit(ctx context.Context, req CommitRequest) (CommitReply, error)

	// Rollback ends the transaction without any effect. An error matches [ErrEnded].
	// No other failure is an error: the database rolls back an open transaction by itself.
	// Of ctx Rollback uses only the values.
	Rollback(ctx context.Context) error
}

// StepUnit is a [Unit] for a step of the request (idempotency.Step). The engine calls CommitStep or
// Rollback, once, when the function of the step has returned.
type StepUnit interface {
	Unit

	// CommitStep stores the steps in the record, as [Store.Step] does, and commits the transaction. If
	// the record is another token's, it rolls back and returns driver.ErrNotOwner. The other
	// errors, and the lock that makes [Store.Claim] and [Store.Abandon] wait, are as for
	// [Unit.Commit].
	CommitStep(ctx context.Context, req StepRequest) error
}

// Transactor is implemented by a store that keeps its records in a database with a [Unit], as
// package core/pgstore does. Any other store refuses the option idempotency.Transactional.
type Transactor interface {
	// Transactional reports whether effects can be committed together with a record.
	Transactional() bool
}

// IsTransactional reports whether a store is a [Transactor]. Like pgstore.Tx it also finds the store
// inside another unit that has a method Unwrap() Store.
func IsTransactional(store Store) bool {
	for {
		switch s := store.(type) {
		case Transactor:
			return s.Transactional()
		case interface{ Unwrap() Store }:
			store = s.Unwrap()
		default:
			return false
		}
	}
}

// Claim is what a [Unit] knows about its attempt.
type Claim struct {
	// Store is the store of the engine.
	Store Store
	// ID and Token are the claim's; see [ClaimRequest].
	ID, Token string
	// Lease is the lease of the claim. A transaction that has been idle for so long must
	// not keep its locks.
	Lease time.Duration
}

// ErrRolledBack says that a [Unit] was rolled back: the request has had no effect in
// the database.
var ErrRolledBack = errors.New("interlock: the transaction of the request was rolled back")

// ErrAborted says that a statement of the handler failed, so that its transaction cannot
// be committed. It matches [ErrRolledBack]. An answer that is none of success (a status
// of 400 or more, a code other than OK) is stored nevertheless: it reports no effect.
var ErrAborted = fmt.Errorf("%w: %w", ErrRolledBack, errors.New("a statement of the handler has failed"))

// ErrEnded says that a handler has ended the transaction of its request, which is for
// the engine to do. It is not known whether the handler has committed, and the record
// does not say: the engine marks the record, so that no attempt carries the request out
// again.
var ErrEnded = errors.New("interlock: the handler has committed or rolled back the transaction of its request, " +
	"which the engine does")

// ErrNoAttempt says that a context does not belong to a request to an idempotent
// endpoint: the middleware is missing, or the context was not passed on.
var ErrNoAttempt = errors.New("interlock: the context is of no idempotent request")

// ErrNoRecord says that a request to an idempotent endpoint has no record: it was let through
// without a key (idempotency.Optional), while the store was away (idempotency.FailOpen), or
// for its method. It matches [ErrNoAttempt].
var ErrNoRecord = fmt.Errorf("%w: %w", ErrNoAttempt, errors.New("the request was let through without a record"))

// Enlist returns the [Unit] of the attempt that ctx belongs to. The first call makes it
// with begin; later calls return the same. It is for packages that connect a database
// to the engine. Handlers call the function of such a package (pgstore.Tx).
//
// The error is begin's, and then the next call begins anew. Otherwise it matches
// [ErrNoAttempt] if ctx does not belong to an idempotent endpoint, [ErrNoRecord] if the request
// has no record, and what
// idempotency.MarkEffect returns if the claim is lost or the handler has returned.
// Enlist is safe for concurrent use.
func Enlist(ctx context.Context, begin func(context.Context, Claim) (Unit, error)) (Unit, error) {
	attempt, ok := carrier.Value(ctx, carrier.Attempt).(interface {
		Enlist(ctx context.Context, begin func(context.Context, Claim) (Unit, error)) (Unit, error)
	})
	if !ok {
		return nil, ErrNoAttempt
	}
	return attempt.Enlist(ctx, begin)
}
