package pglock

import (
	"errors"
	"fmt"

	"github.com/interlock-go/interlock/core/driver"
	"github.com/interlock-go/interlock/core/internal/pgpool"
)

// An error of package driver is joined with a second, separate error. It is the last, since logs
// have the root cause of an error (observe.RootCause).
var (
	// errCollided is the outcome of a try that collided with another transaction.
	errCollided = errors.New("interlock: another transaction changed the row of the lock")
	// errShut is the outcome of a request to a store that was closed.
	errShut = fmt.Errorf("%w: %w", driver.ErrUnavailable, errors.New("the store is closed"))
	// errFull is the outcome of a request that finds the queue full.
	errFull = fmt.Errorf("%w: %w", driver.ErrUnavailable, errors.New("too many requests wait for PostgreSQL"))
	// errUnwanted is the outcome of a request if no caller waits for it any more when its
	// turn comes, or its time has ended.
	errUnwanted = fmt.Errorf("%w: %w", driver.ErrNotReady, errors.New("not sent in time"))
	// errTable has the advice for an answer.
	errTable = errors.New("the table of the locks is missing, or not of this version; pgstore.Store.Migrate makes it")
	// errOther is an answer of no use.
	errOther = errors.New("interlock: PostgreSQL answered for a lock that was not asked for")
	// errNoAnswer is the error for a caller that leaves a renewal or a release.
	errNoAnswer = fmt.Errorf("%w: %w", driver.ErrUnavailable, errors.New("no answer in time"))
)

// fate is the state of knowledge about a try that has ended with an error.
type fate int

const (
	unknown  fate = iota // it may have been, or may yet be, executed
	unsent               // there was no connection
	notReady             // not executed: the server cannot at this moment
	collided             // not executed: because of another transaction
	refused              // not executed, nor will it be
)

// fateOf returns the fate of a try that has ended with an error. sent says that its
// statement has left for the server.
//
// A transaction that ends with an error is rolled back. The exceptions are errors of a
// server that ends the connection, or itself: they may come after the commit. An
// ErrBadConn should say that nothing was executed, but lib/pq returns it also where the
// answer did not come.
func fateOf(err error, sent bool) fate {
	state := pgpool.State(err)
	class := state
	if len(state) == 5 {
		class = state[:2]
	}
	switch {
	case errors.Is(err, errCollided):
		return collided
	case !sent && (state == "57P03" || class == "53"): // it starts or shuts down; too many connections
		return notReady
	case !sent:
		return unsent
	case state == "40001", state == "40P01", state == "55P03": // serialization failure, deadlock, lock timeout
		return collided
	case state == "25006", state == "57014": // a standby; cancelled by the server's own timeout, or by hand
		return notReady
	}
	switch class {
	case "", "08", "53", "57", "58", "XX":
		return unknown
	}
	return refused
}

// internal reports whether the server answers that it has failed by itself: a lack of resources
// (class 53), of the system (58), or a defect (XX). The caller waits for such a server, but not
// for a full disk (53100), which lasts.
func internal(state string) bool {
	if len(state) != 5 || state == "53100" {
		return false
	}
	return state[:2] == "53" || state[:2] == "58" || state[:2] == "XX"
}

// isLockTimeout reports whether a row was locked by another transaction for too long.
func isLockTimeout(err error) bool { return pgpool.State(err) == "55P03" }

// spoilt reports whether a connection is of no more use after an error: it is broken.
func spoilt(err error) bool { return fateOf(err, true) == unknown }

// wrap makes the error for the caller of a request.
func wrap(err error, f fate) error {
	if errors.Is(err, driver.ErrUnavailable) || errors.Is(err, driver.ErrNotReady) {
		return err
	}
	switch state := pgpool.State(err); {
	case f == collided, f == notReady, f == unknown && internal(state):
		return fmt.Errorf("%w: %w", driver.ErrNotReady, err)
	case state == "42P01", state == "42703", state == "3F000":
		return fmt.Errorf("%w: %w: %w", driver.ErrUnavailable, err, errTable)
	}
	return fmt.Errorf("%w: %w", driver.ErrUnavailable, err)
}
