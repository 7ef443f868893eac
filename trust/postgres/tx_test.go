//go:build integration && unix

package postgres_test

import (
	"context"
	"database/sql"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/idempotency"
	"github.com/interlock-go/interlock/core/idempotency/once"
	"github.com/interlock-go/interlock/core/memstore"
	"github.com/interlock-go/interlock/core/pgstore"
	"github.com/interlock-go/interlock/httplock"
	"github.com/interlock-go/interlock/pgxstore"
)

const (
	rolledBack = "urn:interlock:problem:idempotency-rolled-back"
	tooLarge   = "urn:interlock:problem:idempotency-response-too-large"

	unknownOutcome = "urn:interlock:problem:idempotency-outcome-unknown"
)

func TestEffectAndAnswerAreCommittedTogether(t *testing.T) {
	t.Parallel()
	db, _ := tables(t)
	s := newService(t, db, newStore(t, db), func(w http.ResponseWriter, r *http.Request, tx *pgstore.Transaction) {
		pay(t, r, tx)
		var unseen int
		if err := db.QueryRowContext(r.Context(), "SELECT count(*) FROM ledger WHERE payment = $1::text", r.Header.Get("Idempotency-Key")).Scan(&unseen); err != nil || unseen != 0 {
			t.Errorf("others see %d payments before the commit, %v", unseen, err)
		}
		say(w, "paid")
	})
	s.want("a", 200, "paid")
	s.paid(1)
	if resp := s.want("a", 200, "paid"); resp.Header.Get("Idempotent-Replayed") != "true" {
		t.Error("the duplicate got no replay")
	}
	s.paid(1)
	s.want("b", 200, "paid")
	s.paid(2)
	if s.runs.Load() != 2 {
		t.Errorf("the handler ran %d times; want 2", s.runs.Load())
	}
}

// TestHandlersThatRollBack has each end of a handler that is not to be committed, twice:
// the second attempt is carried out, since the first one had no effect.
func TestHandlersThatRollBack(t *testing.T) {
	for name, c := range map[string]struct {
		end    func(s *service, w http.ResponseWriter, r *http.Request, tx *pgstore.Transaction)
		status int
		text   string
	}{
		"failure": {func(_ *service, w http.ResponseWriter, _ *http.Request, _ *pgstore.Transaction) {
			http.Error(w, "no", http.StatusInternalServerError)
		}, 500, "no"},
		"not now": {func(_ *service, w http.ResponseWriter, _ *http.Request, _ *pgstore.Transaction) {
			http.Error(w, "no", http.StatusTooManyRequests)
		}, 429, "no"},
		"panic": {func(*service, http.ResponseWriter, *http.Request, *pgstore.Transaction) { panic("no") }, 200, ""},
		"oversize": {func(_ *service, w http.ResponseWriter, _ *http.Request, _ *pgstore.Transaction) {
			say(w, strings.Repeat("x", 200))
		}, 500, tooLarge},
		"a failed statement that is not told": {func(_ *service, w http.ResponseWriter, r *http.Request, tx *pgstore.Transaction) {
			if _, err := tx.ExecContext(r.Context(), "SELECT 1/0"); err == nil {
				t.Error("a division by zero succeeds")
			}
			say(w, "paid")
		}, 503, rolledBack},
		"a connection that breaks": {func(s *service, w http.ResponseWriter, _ *http.Request, tx *pgstore.Transaction) {
			s.terminate(tx)
			say(w, "paid")
		}, 503, rolledBack},
		"a deferred constraint": {func(s *service, w http.ResponseWriter, r *http.Request, tx *pgstore.Transaction) {
			for range 2 {
				if _, err := tx.ExecContext(r.Context(), "INSERT INTO once VALUES (1)"); err != nil {
					s.Error(err)
				}
			}
			say(w, "paid")
		}, 503, rolledBack},
		"a record that was deleted": {func(s *service, w http.ResponseWriter, r *http.Request, _ *pgstore.Transaction) {
			if _, err := s.db.ExecContext(r.Context(), "DELETE FROM interlock_record"); err != nil {
				s.Error(err)
			}
			say(w, "paid")
		}, 503, rolledBack},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db, _ := tables(t)
			execute(t, db, "CREATE TABLE once (n int UNIQUE DEFERRABLE INITIALLY DEFERRED)")
			var s *service
			s = newService(t, db, newStore(t, db), func(w http.ResponseWriter, r *http.Request, tx *pgstore.Transaction) {
				pay(t, r, tx)
				if s.runs.Load() < 3 {
					c.end(s, w, r, tx)
				} else {
					say(w, "paid")
				}
			}, idempotency.MaxResponse(100))
			for range 2 {
				resp := s.want("a", c.status, c.text)
				if retry := resp.Header.Get("Retry-After"); c.text == rolledBack && retry == "" {
					t.Error("the client is not told to try again")
				}
				s.paid(0)
				if state := read[string](s, db, states); state != "" {
					t.Errorf("the record is left in state %q", state)
				}
			}
			s.want("a", 200, "paid")
			s.paid(1)
			if s.runs.Load() != 3 {
				t.Errorf("the handler ran %d times; want 3", s.runs.Load())
			}
		})
	}
}

// terminate ends the connection of a transaction, as a fault of the network does.
func (s *service) terminate(tx *pgstore.Transaction) {
	s.Helper()
	pid := read[int](s, tx, "SELECT pg_backend_pid()")
	if !read[bool](s, s.db, "SELECT pg_terminate_backend($1::int, 60000)", pid) { // it waits for the end
		s.Fatalf("the connection %d has not ended", pid)
	}
}

// TestAnswersThatCommit are refusals of the handler that are stored.
func TestAnswersThatCommit(t *testing.T) {
	t.Parallel()
	db, _ := tables(t)
	s := newService(t, db, newStore(t, db), func(w http.ResponseWriter, r *http.Request, tx *pgstore.Transaction) {
		pay(t, r, tx)
		if r.Header.Get("Idempotency-Key") == "b" {
			if _, err := tx.ExecContext(r.Context(), "SELECT 1/0"); err == nil {
				t.Error("a division by zero succeeds")
			}
		}
		http.Error(w, "declined", http.StatusUnprocessableEntity)
	})
	for range 2 {
		s.want("a", 422, "declined")
		s.paid(1) // what the handler wrote stays, with the answer
	}
	for range 2 {
		s.want("b", 422, "declined") // the statement failed, so only the answer stays
		s.paid(1)
	}
	if s.runs.Load() != 2 {
		t.Errorf("the handler ran %d times; want 2", s.runs.Load())
	}
}

// TestAnAttemptThatWasTakenOverCommitsNothing has another attempt answer first.
func TestAnAttemptThatWasTakenOverCommitsNothing(t *testing.T) {
	t.Parallel()
	db, _ := tables(t)
	var s *service
	s = newService(t, db, newStore(t, db), func(w http.ResponseWriter, r *http.Request, tx *pgstore.Transaction) {
		run := s.runs.Load()
		pay(t, r, tx)
		if run == 1 {
			// Its lease ends, as far as the database knows: the process was stopped.
			if _, err := db.ExecContext(r.Context(), "UPDATE interlock_record SET lease_until = now() - interval '1 second'"); err != nil {
				t.Error(err)
			}
			s.want("a", 200, "paid by run 2")
		}
		say(w, "paid by run "+string(rune('0'+run)))
	})
	if resp := s.want("a", 200, "paid by run 2"); resp.Header.Get("Idempotent-Replayed") != "true" {
		t.Error("the attempt that was taken over answers by itself")
	}
	s.paid(1)
}

// TestSerializationFailures has a transaction conflict with another one.
func TestSerializationFailures(t *testing.T) {
	for _, level := range []sql.IsolationLevel{sql.LevelRepeatableRead, sql.LevelSerializable} {
		t.Run(level.String(), func(t *testing.T) {
			t.Parallel()
			db, _ := tables(t)
			store := newStore(t, db, pgstore.Isolation(level))
			execute(t, db, "CREATE TABLE account AS SELECT 0 AS balance")
			var s *service
			s = newService(t, db, store, func(w http.ResponseWriter, r *http.Request, tx *pgstore.Transaction) {
				var balance int
				if err := tx.QueryRowContext(r.Context(), "SELECT balance FROM account").Scan(&balance); err != nil {
					t.Error(err)
				}
				if s.runs.Load() == 1 { // another transaction comes between
					if _, err := db.ExecContext(r.Context(), "UPDATE account SET balance = balance + 1"); err != nil {
						t.Error(err)
					}
				}
				pay(t, r, tx)
				if _, err := tx.ExecContext(r.Context(), "UPDATE account SET balance = $1::int + 1", balance); (err != nil) != (s.runs.Load() == 1) {
					t.Errorf("run %d: %v", s.runs.Load(), err)
				}
				say(w, "paid")
			})
			s.want("a", 503, rolledBack)
			s.paid(0)
			s.want("a", 200, "paid")
			s.paid(1)
		})
	}
}

// TestAHandlerThatEndsTheTransactionIsNotRunAgain has handlers do what the engine does, each
// after a payment.
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

func TestTxWithoutARecord(t *testing.T) {
	t.Parallel()
	if _, err := pgstore.Tx(t.Context()); !errors.Is(err, idempotency.ErrNoAttempt) {
		t.Errorf("outside of a request: %v", err)
	}
	db, _ := tables(t)
	engine := newEngine(t, newStore(t, db), idempotency.Optional())
	var kept context.Context
	h := httplock.Idempotent(engine)(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		kept = r.Context() //nolint:fatcontext // it is looked at after the handler
		if _, err := pgstore.Tx(kept); (err == nil) != (r.Header.Get("Idempotency-Key") != "") {
			t.Errorf("key %q: Tx returns %v", r.Header.Get("Idempotency-Key"), err)
		}
	}))
	for _, key := range []string{"", "a"} {
		r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/", nil)
		if key != "" {
			r.Header.Set("Idempotency-Key", key)
		}
		h.ServeHTTP(httptest.NewRecorder(), r)
	}
	if _, err := pgstore.Tx(kept); !errors.Is(err, core.ErrLost) {
		t.Errorf("after the end of the handler: %v", err)
	}
}

// TestFencesAreClaimedInTheTransaction has the holder of a lock come after its successor.
// PostgreSQL could not have one of the keys as a text.
func TestFencesAreClaimedInTheTransaction(t *testing.T) {
	t.Parallel()
	db, _ := tables(t)
	store := newStore(t, db)
	guard := core.Serialize(newLocker(t, memstore.New()), "account", core.KeyFunc(
		func(context.Context, core.Request) ([]string, error) { return []string{"\x00\\\xff"}, nil }))
	s := newService(t, db, store, func(w http.ResponseWriter, r *http.Request, tx *pgstore.Transaction) {
		pay(t, r, tx)
		say(w, "paid")
	}, idempotency.Under(guard))
	s.want("a", 200, "paid")
	s.paid(1)
	for _, key := range []string{"account", `\000\\\377`} {
		if token := read[int64](t, db, "SELECT token FROM interlock_fence WHERE key = $1", key); token < 1 {
			t.Errorf("the fence of %s has token %d", key, token)
		}
	}
	execute(t, db, "UPDATE interlock_fence SET token = token + 3600000000")
	s.want("b", 500, "no transaction")
	s.paid(1)
}

// TestAConsumersEffectAndItsRecord has the effect of a message, and that the message is
// done, in one transaction.
func TestAConsumersEffectAndItsRecord(t *testing.T) {
	t.Parallel()
	db, _ := tables(t)
	store := newStore(t, db)
	execute(t, db, "CREATE TABLE inbox (message text, amount bigint)")
	engine := newEngine(t, store, idempotency.Transactional())
	fails := errors.New("not today")
	runs := 0
	consume := func(id string, amount int64) (string, error) {
		return once.Do(t.Context(), engine, id, amount, func(ctx context.Context, amount int64) (string, error) {
			runs++
			tx, err := pgstore.Tx(ctx)
			if err != nil {
				return "", err
			}
			if _, err := tx.ExecContext(ctx, "INSERT INTO inbox VALUES ($1::text, $2::bigint)", id, amount); err != nil {
				return "", err
			}
			switch {
			case runs == 1:
				return "", fails
			case amount < 0:
				return "", once.Final(errors.New("negative"))
			}
			return "done " + id, nil
		})
	}
	count := func(want int) {
		t.Helper()
		if n := read[int](t, db, "SELECT count(*) FROM inbox"); n != want {
			t.Errorf("%d effects; want %d", n, want)
		}
	}
	if _, err := consume("a", 1); !errors.Is(err, fails) {
		t.Errorf("the first delivery: %v", err)
	}
	count(0)
	for range 2 {
		if out, err := consume("a", 1); out != "done a" || err != nil {
			t.Errorf("a later delivery: %q, %v", out, err)
		}
		count(1)
	}
	for range 2 {
		var stored *once.StoredError
		if _, err := consume("b", -1); !errors.As(err, &stored) && runs != 3 {
			t.Errorf("a final error: %v", err)
		}
		count(2) // as a declined payment, it is an answer
	}
	if runs != 3 {
		t.Errorf("the function ran %d times; want 3", runs)
	}
}
