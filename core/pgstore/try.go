package pgstore

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/interlock-go/interlock/core/driver"
	"github.com/interlock-go/interlock/core/internal/pgpool"
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

// try runs statements on a connection until the database has answered, at the latest until
// the deadline. do may run several times. ambiguous says that a try without an answer may
// have been executed, or may be executed later.
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
	return s.on(ctx, s.records, func(conn *sql.Conn) error {
		if err := do(ctx, conn); err != nil {
			return err
		}
		s.measure()
		return ended(ctx)
	})
}

// on runs do on a connection of a pool, and notes if that only reads.
func (s *Store) on(ctx context.Context, db *sql.DB, do func(*sql.Conn) error) error {
	err := pgpool.On(ctx, db, do)
	if pgpool.IsReadOnly(err) {
		s.readOnly.Store(time.Now().UnixNano())
	}
	return err
}

// none is the value of a function that returns only an error.
type none = struct{}

// driverWait bounds the time that a driver takes to return when a context has ended.
const driverWait = 500 * time.Millisecond

// inTime returns the result of f; or [driver.ErrUnavailable], driverWait after ctx has
// ended. Then f goes on, and Close waits for it. After the end of its context lib/pq still
// waits for the answer to a statement, until the server gives it or the connection breaks. A
// caller has to be answered before.
func inTime[T any](ctx context.Context, s *Store, f func() (T, error)) (T, error) {
	type outcome struct {
		value T
		err   error
	}
	done := make(chan outcome, 1) // has room: the caller may have left
	run := func() {
		value, err := f()
		done <- outcome{value, err}
	}
	if !s.work.Go(run) { // the store is closed
		run()
	}
	select {
	case o := <-done:
		return o.value, o.err
	case <-ctx.Done():
	}
	select {
	case o := <-done:
		return o.value, o.err
	case <-time.After(driverWait):
		return *new(T), fmt.Errorf("%w: %w", driver.ErrUnavailable, errLate)
	}
}

// until returns a context that ends at a deadline, and not with ctx.
func until(ctx context.Context, deadline time.Time) (context.Context, context.CancelFunc) {
	return context.WithDeadline(context.WithoutCancel(ctx), deadline)
}

// rowWait is for how many ms a statement waits for the lock of a row: less than a try has. A
// driver that gives a statement up closes its connection, and if the server does not hear
// of that, the statement waits on, and is executed when the row is free.
func (s *Store) rowWait() string { return milliseconds(s.timeout * 3 / 4) }

// ended is the error of a statement that has succeeded after the end of its time. A driver
// may ask the server to cancel a statement then, and take the answer that comes.
// PostgreSQL gives a success for a transaction if its wait for a synchronous standby was
// cancelled. That standby may therefore lack it.
func ended(ctx context.Context) error { return ctx.Err() }

// executed reports whether a statement that ended in err may have been executed. A
// server that ends a connection (class 08, 57P01 to 57P05) can do so after a commit. An
// ErrBadConn proves nothing: lib/pq returns it also where the answer did not come.
func executed(err error) bool {
	if errors.As(err, new(pgpool.UnsentError)) {
		return false
	}
	code := pgpool.State(err)
	return code == "" || strings.HasPrefix(code, "08") || strings.HasPrefix(code, "57P")
}

// passes reports whether it makes sense to try again what ended in err.
func passes(err error) bool {
	switch code := pgpool.State(err); {
	case code == "":
		// The connection broke, or the answer did not come in time.
		return !errors.Is(err, sql.ErrConnDone) && !errors.Is(err, sql.ErrTxDone)
	case strings.HasPrefix(code, "08"), strings.HasPrefix(code, "40"), strings.HasPrefix(code, "53"), strings.HasPrefix(code, "57P"):
		return true // connections, rollbacks, resources, shutdowns
	default:
		return code == "55P03" || code == "57014" || code == "25006" // a lock, a time limit, a standby
	}
}

// errTables is the last in an error, since logs have the root cause of an error (observe.RootCause).
var errTables = errors.New("the tables are missing (pgstore.Store.Migrate makes them), or not in the search_path (the option Schema names theirs)")

// explain says what to do about an error where that is known.
func explain(err error) error {
	if pgpool.State(err) == "42P01" { // undefined_table
		return fmt.Errorf("%w: %w", err, errTables)
	}
	return err
}

// microseconds is the unit of durations in statements.
func microseconds(d time.Duration) int64 { return d.Microseconds() }
