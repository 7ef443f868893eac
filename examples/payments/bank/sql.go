package bank

import (
	"cmp"
	"context"
	"crypto/rand"
	"database/sql"
	_ "embed"
	"errors"
	"fmt"
	"slices"

	"github.com/interlock-go/interlock/core/fencing"
)

// sqlLedger keeps the accounts in PostgreSQL, each as a row with its balance and its
// fence. It makes the same promises as [redisLedger]. A payment is part of the
// transaction of its request, so it needs no reference.
type sqlLedger struct {
	db      *sql.DB
	request func(context.Context) (*sql.Tx, error)
}

// NewSQL returns a bank with its accounts in PostgreSQL; [Migrate] makes its tables.
// request returns the transaction of the request that a context belongs to. [Bank.Pay]
// makes payments in it, and neither commits nor rolls back. For work see [New].
func NewSQL(db *sql.DB, work func(context.Context) error, request func(context.Context) (*sql.Tx, error)) *Bank {
	return &Bank{ledger: &sqlLedger{db, request}, work: work}
}

//go:embed schema.sql
var schema string

// Migrate makes the tables of the bank unless they exist.
func Migrate(ctx context.Context, db *sql.DB) error {
	_, err := db.ExecContext(ctx, schema)
	return err
}

// fence is the token of an account. A claim locks the row until its transaction ends.
var fence = fencing.Column{Table: "payments_account", ID: "id", Fence: "token"}

func (l *sqlLedger) read(ctx context.Context, id string) (entry, error) {
	e := entry{Held: Held{ID: id}}
	err := l.db.QueryRowContext(ctx, "SELECT balance, token FROM payments_account WHERE id = $1", id).Scan(&e.balance, &e.Token)
	return e, failed(ctx, unknown(err, id))
}

// unknown returns [ErrUnknownAccount] for the error of a statement that found no row.
func unknown(err error, id string) error {
	if errors.Is(err, sql.ErrNoRows) {
		return fmt.Errorf("%w: %s", ErrUnknownAccount, id)
	}
	return err
}

func (l *sqlLedger) claim(ctx context.Context, entries []entry) error {
	return l.inTx(ctx, func(tx *sql.Tx) error {
		for _, e := range ordered(entries) {
			err := fence.Claim(ctx, tx, e.ID, e.Token)
			if err == nil {
				err = tx.QueryRowContext(ctx, "SELECT balance FROM payments_account WHERE id = $1", e.ID).Scan(&e.balance)
			}
			if err != nil {
				return unknown(err, e.ID)
			}
		}
		return nil
	})
}

func (l *sqlLedger) write(ctx context.Context, entries []entry) error {
	return l.inTx(ctx, func(tx *sql.Tx) error { return writeIn(ctx, tx, entries) })
}

// writeIn stores the balances of claimed accounts.
func writeIn(ctx context.Context, tx *sql.Tx, entries []entry) error {
	for _, e := range ordered(entries) {
		result, err := tx.ExecContext(ctx, "UPDATE payments_account SET balance = $1 WHERE id = $2 AND token = $3", e.balance, e.ID, e.Token)
		if err := changed(result, err, e); err != nil {
			return err
		}
	}
	return nil
}

func (l *sqlLedger) put(ctx context.Context, e entry) error {
	return l.inTx(ctx, func(tx *sql.Tx) error {
		result, err := tx.ExecContext(ctx, "INSERT INTO payments_account AS a (id, balance, token) VALUES ($1, $2, $3)"+
			" ON CONFLICT (id) DO UPDATE SET balance = excluded.balance, token = excluded.token WHERE a.token <= excluded.token",
			e.ID, e.balance, e.Token)
		return changed(result, err, &e)
	})
}

// made finds nothing: a request with a committed transaction does not run again.
func (l *sqlLedger) made(context.Context, Order) (Payment, error) { return Payment{}, nil }

func (l *sqlLedger) pay(ctx context.Context, o Order, e entry) (Payment, error) {
	tx, err := l.request(ctx)
	if err == nil {
		err = writeIn(ctx, tx, []entry{e})
	}
	if err != nil {
		return Payment{}, failed(ctx, err)
	}
	p := Payment{rand.Text(), e.ID, o.Amount, e.balance}
	_, err = tx.ExecContext(ctx, "INSERT INTO payments_payment (id, account, amount) VALUES ($1, $2, $3)", p.ID, p.Account, p.Amount)
	return p, failed(ctx, err)
}

func (l *sqlLedger) forget(ctx context.Context, ids []string) error {
	return l.inTx(ctx, func(tx *sql.Tx) error {
		for _, id := range ids {
			for _, of := range []string{"payments_payment WHERE account", "payments_account WHERE id"} {
				if _, err := tx.ExecContext(ctx, "DELETE FROM "+of+" = $1", id); err != nil {
					return err
				}
			}
		}
		return nil
	})
}

// inTx runs fn in a new transaction.
func (l *sqlLedger) inTx(ctx context.Context, fn func(*sql.Tx) error) error {
	tx, err := l.db.BeginTx(ctx, nil)
	if err != nil {
		return failed(ctx, err)
	}
	defer func() { _ = tx.Rollback() }() // where it fails, the connection is broken
	if err := fn(tx); err != nil {
		return failed(ctx, err)
	}
	if err := tx.Commit(); err != nil {
		return fmt.Errorf("%w: %w", ErrOutcomeUnknown, err)
	}
	return nil
}

// ordered returns the entries in the order of their accounts. All transactions lock rows in
// this order, so that two of them do not wait for each other.
func ordered(entries []entry) []*entry {
	all := make([]*entry, len(entries))
	for i := range entries {
		all[i] = &entries[i]
	}
	slices.SortFunc(all, func(a, b *entry) int { return cmp.Compare(a.ID, b.ID) })
	return all
}

// changed returns [ErrStaleToken] for a statement that found no row of that token.
func changed(result sql.Result, err error, e *entry) error {
	if err != nil {
		return err
	}
	n, err := result.RowsAffected()
	if err == nil && n == 0 {
		err = fmt.Errorf("%w: %s has another one than %d", ErrStaleToken, e.ID, e.Token)
	}
	return err
}

// failed returns the bank's error for an error of a transaction that was not committed.
func failed(ctx context.Context, err error) error {
	switch {
	case err == nil, errors.Is(err, ErrUnknownAccount), errors.Is(err, ErrStaleToken):
		return err
	case ctx.Err() != nil: // drivers do not say why
		err = context.Cause(ctx)
	}
	return refused(err)
}
