package pgxstore

import (
	"context"
	"database/sql"
	"errors"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/interlock-go/interlock/core/idempotency/record"
	"github.com/interlock-go/interlock/core/pgstore"
)

// Store is a [pgstore.Store] on a pool of pgx. [New] makes one. Close it after the engines
// that use it.
type Store struct {
	*pgstore.Store
	db *sql.DB
}

// New makes a [Store] on a pool. It is [pgstore.New] on [DB], with a [Listener] that wakes
// duplicates which wait in other processes; the option [pgstore.Listen] sets another one.
// An error matches [driver.ErrConfig].
func New(pool *pgxpool.Pool, opts ...pgstore.Option) (*Store, error) {
	listener, err := NewListener(pool)
	if err != nil {
		return nil, err
	}
	db := DB(pool)
	store, err := pgstore.New(db, append([]pgstore.Option{pgstore.Listen(listener)}, opts...)...)
	if err != nil {
		return nil, errors.Join(err, db.Close())
	}
	return &Store{store, db}, nil
}

// Close ends the store's work in the background. It does not close the pool.
func (s *Store) Close() error { return errors.Join(s.Store.Close(), s.db.Close()) }

// Unwrap returns the store of package pgstore.
func (s *Store) Unwrap() record.Store { return s.Store }

// InTx is [pgstore.Store.InTx], with the transaction in the form of pgx: f runs in the
// transaction of the request that ctx belongs to, or of a request without a record in a
// transaction that is committed if f returns nil.
func (s *Store) InTx(ctx context.Context, f func(tx pgx.Tx) error) error {
	return s.Store.InTx(ctx, func(t *pgstore.Transaction) error {
		tx, err := TxOn(t.Conn())
		if err != nil {
			return err
		}
		return f(tx)
	})
}

// Tx returns the transaction of the request that ctx belongs to, in the form of pgx. It is
// [pgstore.Tx], and both can be used in one request. Commit and Rollback return
// [ErrNotYours] and do nothing. A statement that ends the transaction makes the outcome of
// the request unknown, as in [pgstore.Transaction.SQL].
func Tx(ctx context.Context) (pgx.Tx, error) {
	t, err := pgstore.Tx(ctx)
	if err != nil {
		return nil, err
	}
	return TxOn(t.Conn())
}
