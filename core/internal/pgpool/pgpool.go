// Package pgpool answers the questions of the stores on PostgreSQL about a pool of
// connections: its size, and which connections are of no use.
package pgpool

import (
	"context"
	"database/sql"
	sqldriver "database/sql/driver"
	"errors"
	"fmt"
)

// readOnly is the code of a statement that a standby refuses, or a server that only reads
// (read_only_sql_transaction).
const readOnly = "25006"

// State returns the code of an error that PostgreSQL has sent, or "". The errors of pgx
// and of lib/pq have the method.
func State(err error) string {
	var coded interface{ SQLState() string }
	if errors.As(err, &coded) {
		return coded.SQLState()
	}
	return ""
}

// IsReadOnly reports whether a statement was refused because transactions of its
// connection only read. lib/pq begins each transaction as read-write, and a standby
// says that it does not support that (feature_not_supported).
func IsReadOnly(err error) bool { return State(err) == readOnly || State(err) == "0A000" }

// MayBeOnes reports whether a statement for several requests may have failed because of a single
// one: a bad value, a damaged row, a policy or a trigger of the table. An error of the connection,
// the server or the transaction is of all. So is an error of the statement itself (class 42, but
// for a missing right, which may be to some rows), or of the user, the database or the schema.
func MayBeOnes(err error) bool {
	state := State(err)
	if len(state) != 5 {
		return false
	}
	switch state[:2] {
	case "42":
		return state == "42501"
	case "08", "0A", "25", "28", "3D", "3F", "40", "53", "55", "57":
		return false
	}
	return true
}

// ErrReadOnly says the same where only reading was asked for: the data may be old.
var ErrReadOnly error = readOnlyError{}

type readOnlyError struct{}

func (readOnlyError) Error() string    { return "interlock: transactions of the connection only read" }
func (readOnlyError) SQLState() string { return readOnly }

// UnsentError is the error of a pool that had no connection in time.
type UnsentError struct{ error }

// Unwrap returns the error of the pool.
func (e UnsentError) Unwrap() error { return e.error }

// Conn takes a connection from a pool. Tries to connect to a server that is away are spaced. If all connections
// stay in use, the error says so, and what helps: most often handlers have them, which wait for a lock or for
// their claim.
func Conn(ctx context.Context, db *sql.DB) (*sql.Conn, error) {
	if err := await(ctx, db); err != nil {
		return nil, err
	}
	conn, err := db.Conn(ctx)
	connected(ctx, db, err)
	if limit := Limit(db); err != nil && ctx.Err() != nil && limit > 0 && inUse(db) >= limit {
		err = fmt.Errorf("all %d connections of the pool stayed in use: %s", limit, Advice)
	}
	return conn, err
}

// Advice is for a pool that handlers can keep from a store.
const Advice = "the option Records of package pgstore gives locks and records a pool that handlers do not use"

// On runs do on a connection of a pool. A connection that only reads is retired.
func On(ctx context.Context, db *sql.DB, do func(*sql.Conn) error) error {
	conn, err := Conn(ctx, db)
	if err != nil {
		return UnsentError{err}
	}
	defer func() { _ = conn.Close() }() // back to the pool
	if err = do(conn); IsReadOnly(err) {
		Retire(ctx, conn)
	}
	return err
}

// retire ends the connection that it runs on, unless transactions of it may write, or it
// is new.
const retire = `SELECT pg_terminate_backend(pg_backend_pid())
FROM pg_stat_get_activity(pg_backend_pid()) AS own
WHERE current_setting('transaction_read_only')::boolean
	AND own.backend_start < clock_timestamp() - interval '1 second'`

// Retire ends a connection that only reads, and reports whether it did: then the pool
// connects anew. Such a connection was made before a failover. Its server is a standby now, and
// answers for as long as it runs.
//
// The server ends it. Closing it on this side gives it back where a [sql.DB] is on another
// pool, as the pool of pgx, and where a pooler is in between. A connection that is younger than
// a second stays: where all servers only read, a new one would be made for each request.
func Retire(ctx context.Context, conn *sql.Conn) bool {
	var told bool
	if err := conn.QueryRowContext(ctx, retire).Scan(&told); errors.Is(err, sql.ErrNoRows) {
		return false
	}
	// The answer is most often the error of the server that ends the connection.
	Discard(conn)
	return true
}

// Discard has a pool close a connection that is of no more use.
func Discard(conn *sql.Conn) {
	_ = conn.Raw(func(any) error { return sqldriver.ErrBadConn }) // it returns that
}

// Limit returns how many connections a pool has at the most; 0 is any number. The driver of
// a pool that takes them from another one may say it (pgxstore.DB).
func Limit(db *sql.DB) int {
	limit := db.Stats().MaxOpenConnections
	if other, ok := db.Driver().(interface{ MaxConns() int }); ok && (limit <= 0 || other.MaxConns() < limit) {
		return other.MaxConns()
	}
	return limit
}

// inUse returns how many connections of a pool are in use.
func inUse(db *sql.DB) int {
	if other, ok := db.Driver().(interface{ AcquiredConns() int }); ok {
		return max(db.Stats().InUse, other.AcquiredConns())
	}
	return db.Stats().InUse
}
