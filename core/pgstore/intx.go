package pgstore

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/interlock-go/interlock/core/idempotency/record"
)

const (
	// aloneLease sets the limits of a transaction that belongs to no claim, as the lease of a
	// claim sets the limits of others. It is the default of a claim.
	aloneLease = 30 * time.Second
	// aloneWait bounds its commit.
	aloneWait = 10 * time.Second
)

// InTx runs f in the transaction of the request that ctx belongs to, as [Tx] returns it. A
// request that was let through without a record (idempotency.Optional, idempotency.FailOpen, a
// method without effects) has no such transaction. InTx then begins a transaction, claims the
// fences of all locks that ctx runs under, and commits it if f returns nil. If f returns an
// error or panics, it is rolled back. So a handler has one path for requests with a key and
// without:
//
//	err := store.InTx(ctx, func(tx *pgstore.Transaction) error {
//		_, err := tx.ExecContext(ctx, "UPDATE account SET balance = balance - $1 WHERE id = $2", amount, id)
//		return err
//	})
//	if err != nil {
//		return err // answer with a failure: then the transaction of a request with a key is rolled back, too
//	}
//
// The error is f's, or an error of [Tx]. It matches [record.ErrNoAttempt] if ctx does not
// belong to an idempotent endpoint, and [record.ErrRolledBack] if the database did not commit.
// After any other error of a commit its outcome is not known. InTx is safe for concurrent use.
func (s *Store) InTx(ctx context.Context, f func(tx *Transaction) error) error {
	tx, err := Tx(ctx)
	switch {
	case err == nil:
		return f(tx)
	case errors.Is(err, record.ErrNoRecord):
		return s.alone(ctx, f)
	}
	return err
}

// alone runs f in a transaction that belongs to no record.
func (s *Store) alone(ctx context.Context, f func(tx *Transaction) error) error {
	unit, err := begin(ctx, record.Claim{Store: s, Lease: aloneLease})
	if err != nil {
		return err
	}
	w := unit.(*work) //nolint:forcetypeassert // begin returns no other
	ended := false
	defer func() {
		if !ended { // an error, a panic, or runtime.Goexit
			w.abort()
		}
	}()
	if err := f(&w.Transaction); err != nil {
		return err
	}
	ended = true
	defer w.close()
	defer time.AfterFunc(aloneWait, w.cancel).Stop()
	switch err := w.tx.Commit(); {
	case err == nil:
		return nil
	case !executed(err):
		return fmt.Errorf("interlock: committing a transaction: %w: %w", record.ErrRolledBack, explain(err))
	default:
		return fmt.Errorf("interlock: committing a transaction: %w", explain(err))
	}
}
