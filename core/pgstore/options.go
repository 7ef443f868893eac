package pgstore

import (
	"context"
	"database/sql"
	"fmt"
	"log/slog"
	"regexp"
	"time"

	"github.com/interlock-go/interlock/core/driver"
	"github.com/interlock-go/interlock/core/internal/clock"
	"github.com/interlock-go/interlock/core/internal/logs"
)

// Option configures a [Store]. Options do not change after [New]. An Option that is nil
// has no effect.
type Option func(*settings)

type settings struct {
	err       error
	schema    string
	prefix    string
	records   *sql.DB
	isolation sql.IsolationLevel
	idle      time.Duration
	lockWait  time.Duration
	timeout   time.Duration
	listener  Listener
	sweep     time.Duration
	keep      time.Duration
	log       *logs.Log
}

func defaults() settings {
	return settings{prefix: "interlock_", timeout: time.Second, sweep: time.Minute, keep: time.Hour, log: new(logs.Log)}
}

// longest is the longest duration of an option: PostgreSQL counts timeouts in 31 bits of
// milliseconds.
const longest = 24 * 24 * time.Hour

// named is what a name may be: it becomes part of statements.
var named = regexp.MustCompile(`^[a-z_][a-z0-9_]{0,40}$`)

func (s *settings) fail(format string, args ...any) {
	if s.err == nil {
		s.err = fmt.Errorf("%w: %s", driver.ErrConfig, fmt.Sprintf(format, args...))
	}
}

// set sets a duration, unless it is outside its limits.
func (s *settings) set(to *time.Duration, option string, d, least time.Duration) {
	if wrong := clock.Limits(d, least, longest); wrong != "" {
		s.fail("%s(%v): %s", option, d, wrong)
		return
	}
	*to = d
}

// Schema sets the schema of the tables, which must exist. name has up to 41 lower case
// letters, digits and underscores. Default: the first schema of the connection's
// search_path. A handler that changes search_path in its transaction has to set it back then.
func Schema(name string) Option {
	return func(s *settings) {
		if !named.MatchString(name) {
			s.fail("Schema(%q): up to 41 lower case letters, digits and underscores, and no digit first", name)
			return
		}
		s.schema = name + "."
	}
}

// Prefix sets the beginning of the names of all tables. p has up to 41 lower case
// letters, digits and underscores. Default: "interlock_".
func Prefix(p string) Option {
	return func(s *settings) {
		if !named.MatchString(p) {
			s.fail("Prefix(%q): up to 41 lower case letters, digits and underscores, and no digit first", p)
			return
		}
		s.prefix = p
	}
}

// Records sets another pool of the same database for all but the transactions of
// handlers. It keeps renewals and claims from waiting for handlers that have all
// connections of the first pool. Default: one pool for all.
func Records(db *sql.DB) Option {
	return func(s *settings) {
		if db == nil {
			s.fail("Records(nil): a pool of the same database, or leave the option out")
			return
		}
		s.records = db
	}
}

// Isolation sets the isolation level of the transactions of handlers; see the package's
// documentation for what to expect above READ COMMITTED, also of idempotency.MarkEffect.
// Default: the level of the database.
func Isolation(level sql.IsolationLevel) Option {
	return func(s *settings) { s.isolation = level }
}

// IdleTimeout limits how long the transaction of a handler may be idle between two
// statements (idle_in_transaction_session_timeout). After it PostgreSQL ends the
// connection, so that a process that was stopped between two statements does not keep its
// row locks from the process that takes over. It ends neither a statement with an unread
// result nor a COPY without data. d is at least 1 ms and at most 24 days. Default: two
// thirds of the lease of the claim.
func IdleTimeout(d time.Duration) Option {
	return func(s *settings) {
		s.set(&s.idle, "IdleTimeout", d, time.Millisecond)
	}
}

// LockTimeout limits how long a statement of a handler's transaction waits for the lock
// of a row (lock_timeout). d is at least 1 ms and at most 24 days. Default: a third of the
// lease of the claim.
func LockTimeout(d time.Duration) Option {
	return func(s *settings) {
		s.set(&s.lockWait, "LockTimeout", d, time.Millisecond)
	}
}

// Timeout limits each try of a request. d is at least 10 ms and at most 24 days. Default: 1 s.
func Timeout(d time.Duration) Option {
	return func(s *settings) {
		s.set(&s.timeout, "Timeout", d, 10*time.Millisecond)
	}
}

// Logger sets the logger for warnings. Default, and if l is nil: [slog.Default].
func Logger(l *slog.Logger) Option {
	return func(s *settings) {
		if l != nil {
			s.log = logs.To(l)
		}
	}
}

// Listener receives the notifications of a database (LISTEN) on a separate connection. A
// [Store] calls it once, for its locks and its records together. Module pgxstore has one.
type Listener interface {
	// Listen calls hear with the payload of each notification on the channel, until
	// ctx ends, and then returns. The name of the channel has lower case letters, digits
	// and underscores. Listen calls state(true) when it has begun to hear, also
	// after a reconnect: the store then looks for events that it may have missed. It calls
	// state(false) when it does not hear, and the store looks once a second. Both functions
	// return soon, and may be called from any goroutine.
	Listen(ctx context.Context, channel string, hear func(payload string), state func(listening bool)) error
}

// Listen wakes duplicates and lockers that wait in other processes by NOTIFY. A
// notification is sent only where one waits: it takes a lock of the whole database. It is
// sent after the statement that it is about, which does not fail with it. All
// processes that use the tables should have a Listener, or none. Default: such duplicates
// look once a second, and lockers every 20 to 200 ms.
func Listen(l Listener) Option {
	return func(s *settings) {
		if l == nil {
			s.fail("Listen(nil): a Listener, or leave the option out")
			return
		}
		s.listener = l
	}
}

// SweepEvery sets how often the store looks for rows that are not needed any more: expired
// records, and locks that have been free for a while ([KeepTokens]). Several processes may
// do so. d is at most 24 days; a negative d is never. Default: 1 min.
func SweepEvery(d time.Duration) Option {
	return func(s *settings) {
		if d < 0 {
			s.sweep = d
			return
		}
		s.set(&s.sweep, "SweepEvery", d, 1)
	}
}

// KeepTokens sets for how long the row of a free lock is kept. It remembers the last
// fencing token: the clock of the server may be set back by less than d without a token
// going back. d is positive and at most 24 days. Default: 1 h.
func KeepTokens(d time.Duration) Option {
	return func(s *settings) {
		s.set(&s.keep, "KeepTokens", d, 1)
	}
}
