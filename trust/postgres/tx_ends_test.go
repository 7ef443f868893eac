//go:build integration && unix

package postgres_test

import (
	"context"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/interlock-go/interlock/core/pgstore"
	"github.com/interlock-go/interlock/pgxstore"
)

// TestAHandlerThatEndsTheTransactionIsNotRunAgain has handlers end the transaction as the
// engine does, each after a payment.
func TestAHandlerThatEndsTheTransactionIsNotRunAgain(t *testing.T) {
	statements := func(all ...string) func(context.Context, *pgstore.Transaction) error {
		return func(ctx context.Context, tx *pgstore.Transaction) error {
			for _, text := range all {
				if _, err := tx.ExecContext(ctx, text); err != nil {
					return err
				}
			}
			return nil
		}
	}
	const more = "INSERT INTO ledger VALUES ('more', 1)"
	for name, c := range map[string]struct {
		end    func(context.Context, *pgstore.Transaction) error
		status int // that the handler answers with
		paid   int
	}{
		"commit":   {func(_ context.Context, tx *pgstore.Transaction) error { return tx.SQL().Commit() }, 200, 1},
		"rollback": {func(_ context.Context, tx *pgstore.Transaction) error { return tx.SQL().Rollback() }, 200, 0},
		"commit, failure": {
			func(_ context.Context, tx *pgstore.Transaction) error { return tx.SQL().Commit() }, 500, 1,
		},
		"the statement COMMIT":              {statements("COMMIT"), 200, 1},
		"the statement ROLLBACK":            {statements("ROLLBACK"), 200, 0},
		"the statement COMMIT, failure":     {statements("COMMIT"), 500, 1},
		"a chain":                           {statements("COMMIT AND CHAIN", more), 200, 1},
		"a transaction of its own":          {statements("BEGIN", more, "COMMIT"), 200, 2},
		"a transaction of its own, failure": {statements("BEGIN", more, "COMMIT"), 500, 2},
		"a transaction of its own, open":    {statements("ROLLBACK", "BEGIN", more), 200, 0},
		"through pgx": {func(ctx context.Context, _ *pgstore.Transaction) error {
			tx, err := pgxstore.Tx(ctx)
			if err != nil {
				return err
			}
			_, err = tx.Exec(ctx, "COMMIT")
			return err
		}, 200, 1},
		"a transaction of pgx, failure": {func(ctx context.Context, _ *pgstore.Transaction) error {
			tx, err := pgxstore.Tx(ctx)
			if err != nil {
				return err
			}
			return pgx.BeginFunc(ctx, tx.Conn(), func(tx pgx.Tx) error {
				_, err := tx.Exec(ctx, more)
				return err
			})
		}, 500, 2},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db, _ := tables(t)
			s := newService(t, db, newStore(t, db), func(w http.ResponseWriter, r *http.Request, tx *pgstore.Transaction) {
				pay(t, r, tx)
				if err := c.end(r.Context(), tx); err != nil {
					t.Error(err)
				}
				w.WriteHeader(c.status)
				say(w, "the handler's answer")
			})
			s.want("a", 409, unknownOutcome)
			execute(t, db, "UPDATE interlock_record SET lease_until = now() - interval '1 second'")
			s.want("a", 409, unknownOutcome)
			s.paid(c.paid)
			if s.runs.Load() != 1 {
				t.Errorf("the handler ran %d times; want once", s.runs.Load())
			}
		})
	}
}

// TestSavepointsOfAHandler has a handler end parts of its transaction, which it may.
func TestSavepointsOfAHandler(t *testing.T) {
	t.Parallel()
	db, _ := tables(t)
	s := newService(t, db, newStore(t, db), func(w http.ResponseWriter, r *http.Request, tx *pgstore.Transaction) {
		execute(t, tx, "SAVEPOINT first")
		pay(t, r, tx)
		execute(t, tx, "ROLLBACK TO SAVEPOINT first")
		pay(t, r, tx)
		execute(t, tx, "RELEASE SAVEPOINT first")
		if strings.HasPrefix(r.Header.Get("Idempotency-Key"), "fails") {
			w.WriteHeader(http.StatusInternalServerError)
		}
		say(w, "paid")
	})
	s.want("fails", 500, "paid")
	s.want("fails", 500, "paid")
	s.paid(0)
	for range 2 {
		s.want("a", 200, "paid")
		s.paid(1)
	}
}

// TestAStoppedHandlerKeepsNoRowLock has a handler fall silent in its transaction.
func TestAStoppedHandlerKeepsNoRowLock(t *testing.T) {
	t.Parallel()
	db, _ := tables(t)
	store := newStore(t, db, pgstore.IdleTimeout(4*measured(t).Lapses()))
	var s *service
	s = newService(t, db, store, func(w http.ResponseWriter, r *http.Request, tx *pgstore.Transaction) {
		_, err := tx.ExecContext(r.Context(), "LOCK TABLE ledger")
		if s.runs.Load() == 1 {
			// It waits for the lock, until PostgreSQL has ended the connection.
			if _, err := db.ExecContext(r.Context(), "INSERT INTO ledger VALUES ('other', 1)"); err != nil {
				t.Error(err)
			}
		}
		if err == nil {
			_, err = tx.ExecContext(r.Context(), "INSERT INTO ledger VALUES ('a', 1)")
		}
		if ended := err != nil; s.runs.Load() == 1 && !ended {
			t.Error("the connection has not ended")
		}
		say(w, "paid")
	})
	s.want("a", 503, rolledBack)
	s.paid(1)
	// On a machine that stands still PostgreSQL ends the next connection, too.
	eventually(t, "the payment is made", func() bool { return s.send("a").StatusCode == 200 })
	s.paid(2)
}

// TestAFailureIsAnsweredBeforeTheStatementsThatTheHandlerLeft has a goroutine of the handler
// wait for a lock that another transaction has until the handler's client is answered.
func TestAFailureIsAnsweredBeforeTheStatementsThatTheHandlerLeft(t *testing.T) {
	t.Parallel()
	db, _ := tables(t)
	other, err := db.BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	var goroutines sync.WaitGroup
	defer goroutines.Wait()
	defer func() { _ = other.Rollback() }()
	store := newStore(t, db, pgstore.LockTimeout(measured(t).Holds()))
	s := newService(t, db, store, func(w http.ResponseWriter, r *http.Request, tx *pgstore.Transaction) {
		ctx := context.WithoutCancel(r.Context())
		goroutines.Go(func() { _, _ = tx.ExecContext(ctx, "INSERT INTO ledger VALUES ('left behind', 1)") })
		eventually(t, "the statement waits", func() bool {
			return read[bool](t, db, "SELECT EXISTS (SELECT FROM pg_locks WHERE NOT granted AND relation = 'ledger'::regclass)")
		})
		http.Error(w, "no", http.StatusInternalServerError)
	})
	execute(t, other, "LOCK TABLE ledger")
	answered := make(chan *http.Response, 1)
	go func() { answered <- s.send("a") }()
	s.wantOf(receive(t, "the client is answered", answered), 500, "no")
	if err := other.Commit(); err != nil {
		t.Error(err)
	}
	goroutines.Wait()
	eventually(t, "the transaction is rolled back", func() bool {
		return read[bool](t, db, "SELECT NOT EXISTS (SELECT FROM pg_locks WHERE relation = 'ledger'::regclass AND pid <> pg_backend_pid())")
	})
	s.paid(0)
}
