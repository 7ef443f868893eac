//go:build integration && unix

package postgres_test

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"testing"

	"github.com/jackc/pgx/v5/stdlib"

	"github.com/interlock-go/interlock/core/idempotency/explore"
	"github.com/interlock-go/interlock/trust/internal/pgtest"
)

// A consumer with rows in a real PostgreSQL, under all faults of its process, in fake time. The database rolls back the
// transaction of a dead process.
func TestAConsumerOnARealDatabaseIsExplored(t *testing.T) {
	server := pgtest.Start(t)
	db := server.Open(t)
	run := func(ctx context.Context, db *sql.DB, statement string) {
		if _, err := db.ExecContext(ctx, statement); err != nil {
			t.Fatal(err)
		}
	}
	run(t.Context(), db, "CREATE TABLE consumed (id text, CONSTRAINT once UNIQUE (id))")
	drv := stdlib.GetDefaultDriver().(driver.DriverContext)
	connector, err := drv.OpenConnector(server.DSN() + " lock_timeout=50ms") // fake time stands still while a session waits for another
	if err != nil {
		t.Fatal(err)
	}
	service := func(insert string) explore.Service {
		return explore.Service{
			Messages: []explore.Message{{ID: "m1"}, {ID: "m2"}},
			Start:    func(*explore.World) { fresh(t, connector, "TRUNCATE consumed") },
			Consumer: func(p *explore.Process) func(context.Context, explore.Message) error {
				db := sql.OpenDB(p.Connector(connector))
				p.Cleanup(func() { _ = db.Close() })
				return func(ctx context.Context, m explore.Message) error {
					tx, err := db.BeginTx(ctx, nil)
					if err != nil {
						return err
					}
					defer func() { _ = tx.Rollback() }()
					if _, err := tx.ExecContext(ctx, insert, m.ID); err != nil {
						return err
					}
					return tx.Commit()
				}
			},
			Invariant: func(*explore.World) error {
				if n := fresh(t, connector, "SELECT count(*) FROM consumed"); n != 2 {
					return fmt.Errorf("%d rows, want 2", n)
				}
				return nil
			},
		}
	}
	explore.Run(t, service("INSERT INTO consumed VALUES ($1) ON CONFLICT DO NOTHING"), explore.Budget(20))
	run(t.Context(), db, "ALTER TABLE consumed DROP CONSTRAINT once")
	r := explore.Find(t, service("INSERT INTO consumed VALUES ($1)"))
	const want = "process B died after COMMIT and before acknowledgement of message 1: 3 rows, want 2"
	if r.Failure == nil || r.Failure.Faults+": "+r.Failure.Broken != want {
		t.Errorf("found %v, want %q", r.Failure, want)
	}
}

// fresh runs a statement on a new connection, inside the bubble of its caller, and returns its number.
func fresh(t *testing.T, connector driver.Connector, statement string) (n int) {
	db := sql.OpenDB(connector)
	defer func() { _ = db.Close() }()
	if err := db.QueryRow(statement).Scan(&n); err != nil && !errors.Is(err, sql.ErrNoRows) {
		t.Error(err)
	}
	return n
}
