//go:build integration && unix

package postgres_test

import (
	"database/sql"
	"errors"
	"strings"
	"testing"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/adapter/adaptertest"
	"github.com/interlock-go/interlock/internal/frameworks"
)

// The table of frameworks runs on memory. Faults that the statements could hide show where
// processes meet at the server alone.
func TestOneRuleExcludesAcrossProtocolsOnPostgreSQL(t *testing.T) {
	_, dsn := tables(t)
	adaptertest.RunAcross(t, func(tb testing.TB) core.Store { return newStore(tb, connect(tb, dsn)) }, frameworks.Protocols...)
}

// row is the row of a key's lock on the server.
type row struct {
	held  bool // and its lease has not ended
	token int64
}

// lockRow reads the row of a lock; zero if there is none.
func lockRow(tb testing.TB, db *sql.DB, key string) (r row) {
	tb.Helper()
	err := db.QueryRowContext(tb.Context(), "SELECT coalesce(record::json->>'owner', '') <> '' AND lease_until > clock_timestamp(), token "+
		"FROM interlock_lock WHERE key = $1::bytea", []byte(key)).Scan(&r.held, &r.token)
	if err != nil && !errors.Is(err, sql.ErrNoRows) && !strings.Contains(err.Error(), "42P01") { // a standby may not have the table yet
		tb.Fatal(err)
	}
	return r
}
