//go:build long && unix

package fencing_test

import (
	"context"
	"database/sql"
	"errors"
	"path/filepath"
	"testing"

	_ "modernc.org/sqlite"

	"github.com/interlock-go/interlock/core/fencing"
	"github.com/interlock-go/interlock/trust/internal/pgtest"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

var (
	fences   = fencing.Table{}
	accounts = fencing.Column{Table: "accounts", ID: "id", Fence: "fence"}
)

// databases are the databases that the statements are tested on.
var databases = map[string]func(*testing.T) *sql.DB{
	"PostgreSQL": func(t *testing.T) *sql.DB { return pgtest.Open(t) },
	"SQLite":     sqlite,
}

func sqlite(t *testing.T) *sql.DB {
	t.Helper()
	db, err := sql.Open("sqlite", "file:"+filepath.Join(t.TempDir(), "db")+"?_pragma=journal_mode(wal)&_pragma=busy_timeout(20000)&_pragma=synchronous(off)")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close() })
	return db
}

// onEach runs a test on each database, with the tables in it and one account, of
// balance 100.
func onEach(t *testing.T, test func(*testing.T, *sql.DB)) {
	for name, open := range databases {
		t.Run(name, func(t *testing.T) {
			db := open(t)
			prepare(t, db)
			test(t, db)
		})
	}
}

func prepare(t *testing.T, db *sql.DB) {
	t.Helper()
	for _, statement := range []string{
		fences.Schema(), fences.Schema(), // the second finds it
		"CREATE TABLE accounts (id text PRIMARY KEY, balance bigint NOT NULL, fence bigint NOT NULL DEFAULT 0)",
		"INSERT INTO accounts (id, balance) VALUES ('42', 100)",
	} {
		if _, err := db.ExecContext(t.Context(), statement); err != nil {
			t.Fatalf("%s: %v", statement, err)
		}
	}
}

// inTx runs fn in a transaction without a lease.
func inTx(ctx context.Context, db *sql.DB, level sql.IsolationLevel, fn func(*sql.Tx) error) error {
	tx, err := db.BeginTx(ctx, &sql.TxOptions{Isolation: level})
	if err != nil {
		return err
	}
	if err := fn(tx); err != nil {
		return errors.Join(err, tx.Rollback())
	}
	return tx.Commit()
}

type querier interface {
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
}

func balance(ctx context.Context, q querier) (n int64, err error) {
	err = q.QueryRowContext(ctx, "SELECT balance FROM accounts WHERE id = '42'").Scan(&n)
	return n, err
}

func setBalance(ctx context.Context, tx *sql.Tx, n int64) error {
	_, err := tx.ExecContext(ctx, "UPDATE accounts SET balance = $1 WHERE id = '42'", n)
	return err
}

func wantBalance(t *testing.T, db *sql.DB, want int64) {
	t.Helper()
	if got, err := balance(t.Context(), db); err != nil || got != want {
		t.Errorf("the balance is %d (%v), want %d", got, err, want)
	}
}

// latest is the fence of a key, 0 if there is none.
func latest(t *testing.T, db *sql.DB, key string) (token int64) {
	t.Helper()
	err := db.QueryRowContext(t.Context(), "SELECT token FROM interlock_fence WHERE key = $1", key).Scan(&token)
	if err != nil && !errors.Is(err, sql.ErrNoRows) {
		t.Fatal(err)
	}
	return token
}

func wantStale(t *testing.T, err error, token, latest int64) {
	t.Helper()
	var stale *fencing.StaleError
	if !errors.As(err, &stale) || stale.Token != token || stale.Latest != latest {
		t.Errorf("%v, want %d refused because of %d", err, token, latest)
	}
}
