package pgstore

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/interlock-go/interlock/core/driver"
)

// querier is a pool, a connection or a transaction.
type querier interface {
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
}

const (
	// minPause and maxPause bound the pauses between tries of a request.
	minPause = 5 * time.Millisecond
	maxPause = 200 * time.Millisecond
)

// unsentError is the error of a try that found no connection.
type unsentError struct{ error }

func (e unsentError) Unwrap() error { return e.error }

// try runs statements on a connection until the database has answered, at the latest until
// the deadline. do may run several times. ambiguous says that a try may have been executed
// whose answer did not come, or may be executed later.
func (s *Store) try(ctx context.Context, deadline time.Time, do func(context.Context, querier) error) (ambiguous bool, err error) {
	ctx = context.WithoutCancel(ctx)
	var cause error // the last that tells more than that there was no more time
	for pause := minPause; ; pause = min(2*pause, maxPause) {
		err = s.once(ctx, deadline, do)
		if err == nil {
			return ambiguous, nil
		}
		ambiguous = ambiguous || executed(err)
		if cause == nil || !errors.Is(err, context.DeadlineExceeded) {
			cause = err
		}
		if !passes(err) || time.Until(deadline) < pause {
			return ambiguous, fmt.Errorf("%w: %w", driver.ErrUnavailable, explain(cause))
		}
		time.Sleep(pause)
	}
}

// once runs statements once, for at most the timeout.
func (s *Store) once(ctx context.Context, deadline time.Time, do func(context.Context, querier) error) error {
	if bound := time.Now().Add(s.timeout); bound.Before(deadline) {
		deadline = bound
	}
	ctx, cancel := context.WithDeadline(ctx, deadline)
	defer cancel()
	conn, err := s.records.Conn(ctx)
	if err != nil {
		return unsentError{err}
	}
	defer func() { _ = conn.Close() }() // back to the pool
	if err := do(ctx, conn); err != nil {
		return err
	}
	return ended(ctx)
}

// rowWait is for how many ms a statement waits for the lock of a row: less than a try has. A
// driver that gives a statement up closes its connection, and if the server does not hear
// of that, the statement waits on, and is executed when the row is free.
func (s *Store) rowWait() string { return milliseconds(s.timeout * 3 / 4) }

// ended is the error of a statement that has succeeded after the end of its time. A driver
// may ask the server to cancel a statement then, and take the answer that comes.
// PostgreSQL gives a success for a transaction whose wait for a synchronous standby was
// cancelled, and which that standby may therefore lack.
func ended(ctx context.Context) error { return ctx.Err() }

// sqlState returns the code of an error that PostgreSQL has sent, or "". The errors of
// pgx and of lib/pq have the method.
func sqlState(err error) string {
	var coded interface{ SQLState() string }
	if errors.As(err, &coded) {
		return coded.SQLState()
	}
	return ""
}

// executed reports whether a statement that ended in err may have been executed. A
// server that ends a connection (class 08, 57P01 to 57P05) can do so after a commit. An
// ErrBadConn proves nothing: lib/pq returns it also where the answer did not come.
func executed(err error) bool {
	if errors.As(err, new(unsentError)) {
		return false
	}
	code := sqlState(err)
	return code == "" || strings.HasPrefix(code, "08") || strings.HasPrefix(code, "57P")
}

// passes reports whether it makes sense to try again what ended in err.
func passes(err error) bool {
	switch code := sqlState(err); {
	case code == "":
		// The connection broke, or the answer did not come in time.
		return !errors.Is(err, sql.ErrConnDone) && !errors.Is(err, sql.ErrTxDone)
	case strings.HasPrefix(code, "08"), strings.HasPrefix(code, "40"), strings.HasPrefix(code, "53"), strings.HasPrefix(code, "57P"):
		return true // connections, rollbacks, resources, shutdowns
	default:
		return code == "55P03" || code == "57014" || code == "25006" // a lock, a time limit, a standby
	}
}

// explain says what to do about an error where that is known.
func explain(err error) error {
	if sqlState(err) == "42P01" { // undefined_table
		return fmt.Errorf("the tables are missing, Store.Migrate makes them: %w", err)
	}
	return err
}

// microseconds is the unit of durations in statements.
func microseconds(d time.Duration) int64 { return d.Microseconds() }
