//go:build integration && unix

package postgres_test

import (
	"context"
	"database/sql"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/idempotency"
	"github.com/interlock-go/interlock/core/idempotency/once"
	"github.com/interlock-go/interlock/core/memstore"
	"github.com/interlock-go/interlock/core/pgstore"
	"github.com/interlock-go/interlock/httplock"
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
		s.paid(1) // the handler's writes stay, with the answer
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
// PostgreSQL could not have every key as a text.
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
