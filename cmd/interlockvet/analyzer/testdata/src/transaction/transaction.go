// Package transaction has locks inside transactions, and transactions that a handler ends.
package transaction

import (
	"context"
	"database/sql"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/fencing"
	"github.com/interlock-go/interlock/core/pgstore"
)

type bank struct {
	db     *sql.DB
	locker *core.Locker
}

func debit(context.Context, *sql.Tx) error { return nil }

// Fault 19: the lock is taken inside the transaction.
func (b *bank) inside(ctx context.Context) error {
	tx, err := b.db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer tx.Rollback()
	err = b.locker.Do(ctx, "account/42", func(ctx context.Context) error { // want `transaction: Do inside a transaction waits with a connection and row locks in its hand, .*; take the lock first`
		return debit(ctx, tx)
	})
	if err != nil {
		return err
	}
	return tx.Commit()
}

func (b *bank) locked(ctx context.Context) error {
	tx, err := b.db.Begin()
	if err != nil {
		return err
	}
	lease, err := b.locker.Lock(ctx, "account/42") // want `transaction: Lock inside a transaction`
	if err != nil {
		return err
	}
	defer lease.Release(ctx)
	if err := debit(lease.Context(), tx); err != nil {
		return err
	}
	return core.Commit(lease.Context(), tx.Commit)
}

func inTx(context.Context, *sql.DB, func(tx *sql.Tx) error) error { return nil }

func (b *bank) helper(ctx context.Context) error {
	return inTx(ctx, b.db, func(tx *sql.Tx) error {
		return b.locker.Do(ctx, "account/42", func(ctx context.Context) error { return debit(ctx, tx) }) // want `transaction: Do inside a transaction`
	})
}

func (b *bank) good(ctx context.Context) error {
	err := b.locker.Do(ctx, "account/42", func(ctx context.Context) error {
		return inTx(ctx, b.db, func(tx *sql.Tx) error { return debit(ctx, tx) })
	})
	if err != nil {
		return err
	}
	lease, err := b.locker.Lock(ctx, "account/42")
	if err != nil {
		return err
	}
	defer lease.Release(ctx)
	if err := (fencing.Table{}).InTx(ctx, b.db, lease, nil, debit); err != nil {
		return err
	}
	tx, err := b.db.BeginTx(lease.Context(), nil)
	if err != nil {
		return err
	}
	if err := debit(lease.Context(), tx); err != nil {
		return err
	}
	if err := tx.Commit(); err != nil {
		return err
	}
	return b.locker.Do(ctx, "account/43", func(context.Context) error { return nil })
}

// Fault 20: the handler ends the transaction of the engine.
func (b *bank) ends(ctx context.Context) error {
	tx, err := pgstore.Tx(ctx)
	if err != nil {
		return err
	}
	if _, err := tx.ExecContext(ctx, "UPDATE account SET balance = 0"); err != nil {
		return err
	}
	if _, err := tx.ExecContext(ctx, "COMMIT"); err != nil { // want `transaction: the engine ends the transaction of the request`
		return err
	}
	return tx.SQL().Commit() // want `transaction: the engine ends the transaction of the request`
}
