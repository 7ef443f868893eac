//go:build integration && long && unix

package postgres_test

import (
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/internal/testkit"
)

// Processes that have ended leave their places in line. Without LISTEN a lock is kept for them for their patience, and with
// LISTEN it is offered to the first of them.
func TestLocksThatAreKeptForEndedProcessesAreHadByCallersThatAskOnce(t *testing.T) {
	for name, open := range map[string]func(t *testing.T, dsn string, line *testkit.Line) core.Store{
		"without LISTEN": func(t *testing.T, dsn string, line *testkit.Line) core.Store {
			config, err := pgx.ParseConfig(dsn)
			if err != nil {
				t.Fatal(err)
			}
			config.DialFunc = line.Dial
			db := stdlib.OpenDB(*config)
			db.SetMaxOpenConns(8)
			t.Cleanup(func() { _ = db.Close() })
			return newStore(t, db)
		},
		"with LISTEN": func(t *testing.T, dsn string, line *testkit.Line) core.Store {
			return newPgxStore(t, newPool(t, dsn, func(config *pgxpool.Config) { config.ConnConfig.DialFunc = line.Dial }))
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, dsn := tables(t)
			testkit.AskAfterEnded(t, func(t *testing.T, line *testkit.Line) core.Store { return open(t, dsn, line) }, false)
		})
	}
}
