package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	_ "github.com/jackc/pgx/v5/stdlib" // the driver "pgx"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/pgstore"
	"github.com/interlock-go/interlock/examples/payments/bank"
)

// With -postgres the accounts are in PostgreSQL, and the records of the payments beside
// them. The rows of a payment and its record are committed in one transaction. The locks
// stay in Redis.

// maxConns bounds the connections of one process: several share a server, and many
// servers allow 100.
const maxConns = 20

// openPostgres connects the bank with a database, makes the tables, and returns the store
// of the records.
func (s *service) openPostgres(ctx context.Context, url string, work func(context.Context) error) (*pgstore.Store, error) {
	db, err := sql.Open("pgx", url)
	if err != nil {
		return nil, err
	}
	s.connection = append(s.connection, db.Close)
	db.SetMaxOpenConns(maxConns)
	db.SetMaxIdleConns(maxConns)
	store, err := pgstore.New(db, pgstore.Logger(s.log))
	if err != nil {
		return nil, err
	}
	s.connection = append(s.connection, store.Close)

	ctx, cancel := context.WithTimeout(ctx, pingTimeout)
	defer cancel()
	if err := errors.Join(bank.Migrate(ctx, db), store.Migrate(ctx)); err != nil {
		return nil, fmt.Errorf("-postgres: %w", err)
	}
	s.bank = bank.NewSQL(db, work, transaction)
	return store, nil
}

// transaction returns the transaction of a payment. The engine commits it together with
// the answer, or rolls it back.
func transaction(ctx context.Context) (*sql.Tx, error) {
	tx, err := pgstore.Tx(ctx)
	switch {
	case errors.Is(err, core.ErrLost): // noticed here first, before ctx has ended
		return nil, fmt.Errorf("%w: %w", bank.ErrStaleToken, err)
	case err != nil:
		return nil, err
	}
	return tx.SQL(), nil
}

// noMark is for payments in a transaction. Until its commit nothing has changed, and so
// there is nothing to mark.
func noMark(context.Context) error { return nil }
