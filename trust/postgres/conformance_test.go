//go:build integration && unix

package postgres_test

import (
	"database/sql"
	"errors"
	"strings"
	"testing"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/internal/conformance"
	"github.com/interlock-go/interlock/internal/frameworks"
)

// What all rows of the table have is the frameworks', and is tested on memory. What the
// statements could hide shows where processes meet at the server alone.
func TestOneRuleExcludesAcrossProtocolsOnPostgreSQL(t *testing.T) {
	conformance.RunAcross(t, frameworks.Protocols, onPostgreSQL)
}

func TestTransfersKeepTheSumOnPostgreSQL(t *testing.T) {
	conformance.RunLedger(t, frameworks.Protocols, onPostgreSQL)
}

// onPostgreSQL opens a schema.
func onPostgreSQL(t *testing.T, _ bool) conformance.Server {
	t.Helper()
	db, dsn := tables(t)
	return lockServer{db, dsn}
}

// lockServer is a schema, as a row of the table sees it.
type lockServer struct {
	db  *sql.DB
	dsn string
}

func (s lockServer) Store(tb testing.TB) core.Store { return newStore(tb, connect(tb, s.dsn)) }

func (s lockServer) Held(tb testing.TB, key string) bool {
	tb.Helper()
	return lockRow(tb, s.db, key).held
}

func (s lockServer) Lose(tb testing.TB, key string) bool {
	tb.Helper()
	held := s.Held(tb, key)
	execute(tb, s.db, "DELETE FROM interlock_lock WHERE key = $1::bytea", []byte(key))
	return held
}

func (lockServer) CutOff(tb testing.TB) { tb.Fatal("the server is shared") }

// row is what a server knows about the lock of a key.
type row struct {
	held  bool // and its lease has not ended
	token int64
}

// lockRow reads the row of a lock; zero if there is none.
func lockRow(tb testing.TB, db *sql.DB, key string) (r row) {
	tb.Helper()
	err := db.QueryRowContext(tb.Context(), "SELECT owner IS NOT NULL AND lease_until > clock_timestamp(), token "+
		"FROM interlock_lock WHERE key = $1::bytea", []byte(key)).Scan(&r.held, &r.token)
	if err != nil && !errors.Is(err, sql.ErrNoRows) && !strings.Contains(err.Error(), "42P01") { // a standby may not have the table yet
		tb.Fatal(err)
	}
	return r
}
