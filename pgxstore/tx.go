package pgxstore

import (
	"context"
	"database/sql"
	sqldriver "database/sql/driver"
	"errors"
	"fmt"
	"strconv"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/interlock-go/interlock/core/driver"
)

// ErrNotYours is returned when a handler commits the transaction of its request, or
// rolls it back. The engine does that, when the handler has returned: it commits the
// transaction together with the answer.
var ErrNotYours = errors.New("interlock: the engine ends the transaction of a request, and not the handler")

// DB returns the pool as a [sql.DB]. It uses the connections of the pool, and they count
// as such. Closing it does not close the pool. It has no separate bound: with a bound its
// callers would hand connections on among themselves while other users of the pool wait; a
// [pgstore.Store] on it knows how many connections the pool has.
func DB(pool *pgxpool.Pool) *sql.DB {
	c := connector{Connector: stdlib.GetPoolConnector(pool)}
	c.driver = bounded{c.Connector.Driver(), pool, int(pool.Config().MaxConns)}
	db := sql.OpenDB(c)
	db.SetMaxIdleConns(0) // they are idle in the pool
	return db
}

// connector takes connections from a pool.
type connector struct {
	sqldriver.Connector
	driver bounded
}

// Driver implements [sqldriver.Connector].
func (c connector) Driver() sqldriver.Driver { return c.driver }

// bounded is the driver of a pool.
type bounded struct {
	sqldriver.Driver
	pool     *pgxpool.Pool
	maxConns int
}

// MaxConns is the maximum number of connections of the pool, for package pgstore.
func (b bounded) MaxConns() int { return b.maxConns }

// AcquiredConns is the number of them that are in use.
func (b bounded) AcquiredConns() int { return int(b.pool.Stat().AcquiredConns()) }

// TxOn returns the transaction that is open on a connection of database/sql in the form of
// pgx. Both can be used by turns: rows of the one have to be closed before the other
// runs a statement. The connection has to come from [DB] or from package
// [github.com/jackc/pgx/v5/stdlib], or TxOn returns [driver.ErrConfig].
//
// Commit and Rollback of it return [ErrNotYours] and do nothing, so that a deferred
// Rollback is harmless. Begin makes a savepoint with working Commit and Rollback. After
// the end of the transaction every method returns [pgx.ErrTxClosed]. It sends nothing by
// itself. Like every transaction of pgx it is not safe for concurrent use.
func TxOn(conn *sql.Conn) (pgx.Tx, error) {
	v := &view{conn: conn, last: new(int)}
	if err := v.on(func(*pgx.Conn) error { return nil }); err != nil {
		return nil, err
	}
	return v, nil
}

// view is the transaction of a connection, or a savepoint in it. Each statement asks
// database/sql for the connection anew: that refuses when the connection has gone back
// to the pool.
type view struct {
	conn   *sql.Conn
	last   *int   // number of the last savepoint, which all views of a transaction share
	name   string // of the savepoint; empty for the transaction
	closed bool   // the savepoint
}

// on runs f with the connection, if there is a transaction on it.
func (v *view) on(f func(conn *pgx.Conn) error) (err error) {
	if v.closed {
		return pgx.ErrTxClosed
	}
	gone := v.conn.Raw(func(driverConn any) error {
		std, is := driverConn.(*stdlib.Conn)
		switch {
		case !is:
			err = fmt.Errorf("%w: the connection is a %T: want one of pgx/v5/stdlib", driver.ErrConfig, driverConn)
		case !std.Conn().IsClosed() && std.Conn().PgConn().TxStatus() == 'I':
			err = pgx.ErrTxClosed
		default:
			err = f(std.Conn())
		}
		return nil // an error would be taken for an error of the driver
	})
	switch {
	case errors.Is(gone, sql.ErrConnDone):
		return pgx.ErrTxClosed
	case gone != nil:
		return gone
	}
	return err
}

// Begin makes a savepoint.
func (v *view) Begin(ctx context.Context) (pgx.Tx, error) {
	*v.last++
	name := "interlock_" + strconv.Itoa(*v.last)
	if _, err := v.Exec(ctx, "SAVEPOINT "+name); err != nil {
		return nil, err
	}
	return &view{conn: v.conn, last: v.last, name: name}, nil
}

// Commit keeps the changes since the savepoint, as a part of the transaction.
func (v *view) Commit(ctx context.Context) error { return v.end(ctx, "RELEASE SAVEPOINT ") }

// Rollback undoes the changes since the savepoint.
func (v *view) Rollback(ctx context.Context) error { return v.end(ctx, "ROLLBACK TO SAVEPOINT ") }

func (v *view) end(ctx context.Context, statement string) error {
	if v.name == "" {
		return ErrNotYours
	}
	_, err := v.Exec(ctx, statement+v.name)
	v.closed = true
	return err
}

func (v *view) CopyFrom(
	ctx context.Context, table pgx.Identifier, columns []string, rows pgx.CopyFromSource,
) (n int64, err error) {
	err = v.on(func(conn *pgx.Conn) error {
		n, err = conn.CopyFrom(ctx, table, columns, rows)
		return err
	})
	return n, err
}

func (v *view) SendBatch(ctx context.Context, batch *pgx.Batch) (results pgx.BatchResults) {
	err := v.on(func(conn *pgx.Conn) error {
		if pgx.FailedBatchResults(batch, nil).Tx() != nil {
			return errors.New("interlock: Batch.BeginTx cannot be used within a transaction")
		}
		results = conn.SendBatch(ctx, batch)
		return nil
	})
	if err != nil {
		return pgx.FailedBatchResults(batch, err)
	}
	return results
}

// LargeObjects asks the server once, since only a transaction that pgx has begun has them.
// The statement that begins it does not count.
func (v *view) LargeObjects() (objects pgx.LargeObjects) {
	err := v.on(func(conn *pgx.Conn) error {
		tx, err := conn.BeginTx(context.Background(), pgx.TxOptions{BeginQuery: "-- no statement"})
		if err == nil {
			objects = tx.LargeObjects()
		}
		return err
	})
	if err != nil { // the transaction has ended
		batch := &pgx.Batch{}
		batch.BeginTx(pgx.TxOptions{})
		return pgx.FailedBatchResults(batch, err).Tx().LargeObjects()
	}
	return objects
}

func (v *view) Prepare(ctx context.Context, name, query string) (statement *pgconn.StatementDescription, err error) {
	err = v.on(func(conn *pgx.Conn) error {
		statement, err = conn.Prepare(ctx, name, query)
		return err
	})
	return statement, err
}

func (v *view) Exec(ctx context.Context, query string, args ...any) (tag pgconn.CommandTag, err error) {
	err = v.on(func(conn *pgx.Conn) error {
		tag, err = conn.Exec(ctx, query, args...)
		return err
	})
	return tag, err
}

func (v *view) Query(ctx context.Context, query string, args ...any) (rows pgx.Rows, err error) {
	err = v.on(func(conn *pgx.Conn) error {
		rows, err = conn.Query(ctx, query, args...)
		return err
	})
	if rows == nil { // callers may look at the rows for the error
		rows, _ = pgx.FailedBatchResults(&pgx.Batch{}, err).Query()
	}
	return rows, err
}

func (v *view) QueryRow(ctx context.Context, query string, args ...any) (row pgx.Row) {
	err := v.on(func(conn *pgx.Conn) error {
		row = conn.QueryRow(ctx, query, args...)
		return nil
	})
	if err != nil {
		return pgx.FailedBatchResults(&pgx.Batch{}, err).QueryRow()
	}
	return row
}

// Conn returns the connection, or nil after the end of the transaction.
func (v *view) Conn() (conn *pgx.Conn) {
	_ = v.on(func(c *pgx.Conn) error {
		conn = c
		return nil
	})
	return conn
}
