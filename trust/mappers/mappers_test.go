//go:build long

package mappers

import (
	"context"
	"database/sql"

	"entgo.io/ent/dialect"
	entsql "entgo.io/ent/dialect/sql"
	"github.com/jmoiron/sqlx"
	"gorm.io/gorm"

	"github.com/interlock-go/interlock/core/pgstore"
)

// payment is a row. The handler inserts it in the transaction of its request.
type payment struct {
	ID     int64
	Amount int64
}

// sessionGORM takes the service's own *gorm.DB: the session has its settings.
func sessionGORM(ctx context.Context, orm *gorm.DB) (*gorm.DB, error) {
	tx, err := pgstore.Tx(ctx)
	if err != nil {
		return nil, err
	}
	session := orm.Session(&gorm.Session{NewDB: true, Context: ctx, SkipDefaultTransaction: true})
	session.Statement.ConnPool = tx.SQL()
	return session, nil
}

func insertGORM(ctx context.Context, orm *gorm.DB, p payment) error {
	session, err := sessionGORM(ctx, orm)
	if err != nil {
		return err
	}
	return session.Create(&p).Error
}

// insertSQLX writes $1, since sqlx does not know the driver of this transaction.
func insertSQLX(ctx context.Context, db *sqlx.DB, p payment) error {
	tx, err := pgstore.Tx(ctx)
	if err != nil {
		return err
	}
	in := &sqlx.Tx{Tx: tx.SQL(), Mapper: db.Mapper}
	_, err = in.ExecContext(ctx, "INSERT INTO payments (id, amount) VALUES ($1, $2)", p.ID, p.Amount)
	if err != nil {
		return err
	}
	return in.GetContext(ctx, &p, "SELECT id, amount FROM payments WHERE id = $1", p.ID)
}

// insertSQLC passes the transaction to the New that sqlc generates.
func insertSQLC(ctx context.Context, p payment) error {
	tx, err := pgstore.Tx(ctx)
	if err != nil {
		return err
	}
	return New(tx).InsertPayment(ctx, InsertPaymentParams(p))
}

// insertEnt makes the driver that a client of ent takes by ent.NewClient(ent.Driver(driver)).
func insertEnt(ctx context.Context, p payment) error {
	tx, err := pgstore.Tx(ctx)
	if err != nil {
		return err
	}
	driver := entsql.NewDriver(dialect.Postgres, entsql.Conn{ExecQuerier: tx.SQL()})
	query, args := entsql.Dialect(dialect.Postgres).
		Insert("payments").Columns("id", "amount").Values(p.ID, p.Amount).Query()
	return driver.Exec(ctx, query, args, nil)
}

// sqlc generates the rest for a query that inserts a payment.

// DBTX is the part of a connection or a transaction that a Queries needs.
type DBTX interface {
	ExecContext(context.Context, string, ...any) (sql.Result, error)
	PrepareContext(context.Context, string) (*sql.Stmt, error)
	QueryContext(context.Context, string, ...any) (*sql.Rows, error)
	QueryRowContext(context.Context, string, ...any) *sql.Row
}

// New returns the queries on a connection or a transaction.
func New(db DBTX) *Queries { return &Queries{db: db} }

// Queries runs the queries.
type Queries struct{ db DBTX }

// InsertPaymentParams are the values of the query.
type InsertPaymentParams struct {
	ID     int64
	Amount int64
}

// InsertPayment runs the query.
func (q *Queries) InsertPayment(ctx context.Context, arg InsertPaymentParams) error {
	_, err := q.db.ExecContext(ctx, "INSERT INTO payments (id, amount) VALUES ($1, $2)", arg.ID, arg.Amount)
	return err
}
