//go:build integration && unix

package postgres_test

import (
	"context"
	"database/sql"
	"flag"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/driver"
	"github.com/interlock-go/interlock/core/pgstore"
	"github.com/interlock-go/interlock/internal/pace"
	"github.com/interlock-go/interlock/trust/internal/pgtest"
)

// before runs in place of tests, if a test has started the process for that.
var before []func()

func TestMain(m *testing.M) {
	for _, instead := range before {
		instead()
	}
	// Tests wait more than they work. The flags of the command line come after it.
	if err := flag.Set("test.parallel", "8"); err != nil {
		panic(err)
	}
	pgtest.Main(m)
}

// limits are the leases and bounds of a test, measured on the server that tests share.
var limits struct {
	sync.Once
	pace.Pace
}

// measured returns the limits.
func measured(tb testing.TB) pace.Pace {
	tb.Helper()
	limits.Do(func() {
		db := pgtest.Open(tb)
		limits.Pace = pace.Of(tb, func() error { return db.PingContext(tb.Context()) })
	})
	return limits.Pace
}

// eventually waits for a condition.
func eventually(tb testing.TB, what string, met func() bool) {
	tb.Helper()
	patience := measured(tb).Patience()
	for end := time.Now().Add(patience); !met(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			tb.Fatalf("not within %v: %s", patience, what)
		}
	}
}

// soon is a deadline that a test does not reach.
func soon(tb testing.TB) time.Time {
	tb.Helper()
	return time.Now().Add(measured(tb).Patience())
}

// receive waits for a value of a channel.
func receive[T any](tb testing.TB, what string, from <-chan T) (got T) {
	tb.Helper()
	select {
	case got = <-from:
	case <-time.After(measured(tb).Patience()):
		tb.Fatalf("never: %s", what)
	}
	return got
}

// tables returns a new schema with the tables of a store, and how to connect to it.
func tables(tb testing.TB) (db *sql.DB, dsn string) {
	tb.Helper()
	dsn = pgtest.DSN(tb)
	db = connect(tb, dsn)
	migrate(tb, newStore(tb, db))
	return db, dsn
}

// migrate makes the tables of a store.
func migrate(tb testing.TB, s *pgstore.Store) {
	tb.Helper()
	for range 2 { // the second finds them
		if err := s.Migrate(tb.Context()); err != nil {
			tb.Fatal(err)
		}
	}
}

// connect returns a pool of connections.
func connect(tb testing.TB, dsn string) *sql.DB {
	tb.Helper()
	db, err := sql.Open("pgx", dsn)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = db.Close() })
	return db
}

// newPool returns a pool of connections of pgx.
func newPool(tb testing.TB, dsn string, edits ...func(*pgxpool.Config)) *pgxpool.Pool {
	tb.Helper()
	config, err := pgxpool.ParseConfig(dsn)
	if err != nil {
		tb.Fatal(err)
	}
	for _, edit := range edits {
		edit(config)
	}
	pool, err := pgxpool.NewWithConfig(tb.Context(), config)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(pool.Close)
	return pool
}

// schemaOf is the schema of a connection string.
func schemaOf(dsn string) string {
	_, schema, _ := strings.Cut(dsn, "search_path=")
	return schema
}

// newStore returns a store, which says nothing, deletes no old rows, and gives a request
// all the time that it may need, unless options say otherwise.
func newStore(tb testing.TB, db *sql.DB, opts ...pgstore.Option) *pgstore.Store {
	tb.Helper()
	s, err := pgstore.New(db, append(patiently(tb), opts...)...)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if err := s.Close(); err != nil {
			tb.Errorf("Close: %v", err)
		}
	})
	return s
}

// patiently are the options of most stores. A request that is tried again has an answer
// that is called ambiguous.
func patiently(tb testing.TB) []pgstore.Option {
	tb.Helper()
	return []pgstore.Option{
		pgstore.Timeout(measured(tb).Patience()), pgstore.SweepEvery(-1), pgstore.Logger(slog.New(slog.DiscardHandler)),
	}
}

// newLocker returns a locker on a store, as a process has one.
func newLocker(tb testing.TB, s driver.Store, opts ...core.LockerOption) *core.Locker {
	tb.Helper()
	l, err := core.New(s, opts...)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		ctx, cancel := context.WithDeadline(context.Background(), soon(tb))
		defer cancel()
		if err := l.Close(ctx); err != nil {
			tb.Errorf("Close: %v", err)
		}
	})
	return l
}

// read reads one value.
func read[T any](tb testing.TB, from querier, query string, args ...any) (value T) {
	tb.Helper()
	if err := from.QueryRowContext(tb.Context(), query, args...).Scan(&value); err != nil {
		tb.Fatalf("%s: %v", query, err)
	}
	return value
}

// querier is a pool, or a transaction.
type querier interface {
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
}

// execute executes a statement.
func execute(tb testing.TB, on execer, text string, args ...any) {
	tb.Helper()
	if _, err := on.ExecContext(tb.Context(), text, args...); err != nil {
		tb.Fatalf("%s: %v", text, err)
	}
}

// execer is a pool, or a transaction.
type execer interface {
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
}
