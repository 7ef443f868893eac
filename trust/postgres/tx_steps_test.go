//go:build integration && unix

package postgres_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/idempotency"
	"github.com/interlock-go/interlock/core/idempotency/once"
	"github.com/interlock-go/interlock/core/pgstore"
)

// stepping is a function with steps in transactions.
type stepping struct {
	*testing.T
	db     *sql.DB
	engine *idempotency.Engine
	runs   map[string]*atomic.Int64 // of steps
}

func newStepping(t *testing.T, db *sql.DB, store *pgstore.Store, opts ...idempotency.Option) *stepping {
	t.Helper()
	execute(t, db, "CREATE TABLE ledger (payment text, amount bigint)")
	return &stepping{t, db, newEngine(t, store, opts...), map[string]*atomic.Int64{"charge": {}, "book": {}, "mail": {}}}
}

// step writes a row in the transaction of a step, and goes on as then.
func (s *stepping) step(ctx context.Context, name string, then func(context.Context, *pgstore.Transaction) error, opts ...idempotency.StepOption) (string, error) {
	return idempotency.Step(ctx, name, func(ctx context.Context) (string, error) {
		n := s.runs[name].Add(1)
		tx, err := pgstore.Tx(ctx)
		if err == nil {
			_, err = tx.ExecContext(ctx, "INSERT INTO ledger VALUES ($1::text, 1)", name)
		}
		if err == nil && then != nil {
			err = then(ctx, tx)
		}
		return fmt.Sprint(name, n), err
	}, opts...)
}

// do calls the function.
func (s *stepping) do(f func(ctx context.Context) (string, error)) (string, error) {
	return once.Do(s.Context(), s.engine, "k", 1, func(ctx context.Context, _ int) (string, error) { return f(ctx) })
}

// rows wants the rows of the ledger, in the order of their names.
func (s *stepping) rows(want string) {
	s.Helper()
	if got := read[string](s, s.db, "SELECT coalesce(string_agg(payment, ' ' ORDER BY payment), '') FROM ledger"); got != want {
		s.Errorf("the ledger has the rows %q; want %q", got, want)
	}
}

// all carries out three steps; then is for the last.
func (s *stepping) all(then func(context.Context, *pgstore.Transaction) error, opts ...idempotency.StepOption) (string, error) {
	return s.do(func(ctx context.Context) (string, error) {
		var results []string
		for _, name := range []string{"charge", "book", "mail"} {
			end, o := then, opts
			if name != "mail" {
				end, o = nil, nil
			}
			result, err := s.step(ctx, name, end, o...)
			if err != nil {
				return "", err
			}
			results = append(results, result)
		}
		return strings.Join(results, " "), nil
	})
}

func TestAStepCommitsItsRowsAndItsResult(t *testing.T) {
	t.Parallel()
	for name, opts := range map[string][]idempotency.Option{"flushed": nil, "transactional": {idempotency.Transactional()}} {
		t.Run(name, func(t *testing.T) {
			db, _ := tables(t)
			s := newStepping(t, db, newStore(t, db), opts...)
			broken := errors.New("no mail today")
			if _, err := s.all(func(context.Context, *pgstore.Transaction) error { s.rows("book charge"); return broken }); !errors.Is(err, broken) {
				t.Errorf("the function returned %v; want %v", err, broken)
			}
			s.rows("book charge") // the rows of mail are rolled back
			result, err := s.all(nil)
			if result != "charge1 book1 mail2" || err != nil {
				t.Errorf("the second attempt: %q, %v; want it to go on after two steps", result, err)
			}
			s.rows("book charge mail")
			if _, err := s.all(nil); err != nil {
				t.Error(err)
			}
			s.rows("book charge mail")
		})
	}
}

// TestHowTheTransactionOfAStepEnds has the ends of a step that are not to be committed. In the second
// attempt the step is carried out.
func TestHowTheTransactionOfAStepEnds(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		then func(context.Context, *pgstore.Transaction) error
		want error
	}{
		"a failed statement that is not told": {func(ctx context.Context, tx *pgstore.Transaction) error {
			_, _ = tx.ExecContext(ctx, "SELECT 1/0")
			return nil
		}, idempotency.ErrRolledBack},
		"a deferred constraint": {func(ctx context.Context, tx *pgstore.Transaction) error {
			for range 2 {
				_, _ = tx.ExecContext(ctx, "INSERT INTO once VALUES (1)")
			}
			return nil
		}, idempotency.ErrRolledBack},
		"a record that was deleted": {func(ctx context.Context, tx *pgstore.Transaction) error {
			_, err := tx.ExecContext(ctx, "DELETE FROM interlock_record")
			return err
		}, core.ErrLost},
		"another transaction that the request has begun": {nil, core.ErrConfig},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db, _ := tables(t)
			s := newStepping(t, db, newStore(t, db))
			execute(t, db, "CREATE TABLE once (n int UNIQUE DEFERRABLE INITIALLY DEFERRED)")
			var err error
			if c.then == nil {
				_, err = s.do(func(ctx context.Context) (string, error) {
					if _, err := pgstore.Tx(ctx); err != nil {
						t.Error(err)
					}
					return s.step(ctx, "mail", nil)
				})
			} else {
				_, err = s.all(c.then)
			}
			if !errors.Is(err, c.want) {
				t.Errorf("the step: %v; want %v", err, c.want)
			}
			if strings.Contains(read[string](t, db, "SELECT coalesce(string_agg(payment, ' '), '') FROM ledger"), "mail") {
				t.Error("the rows of the step are committed")
			}
			if name == "a record that was deleted" {
				return // the claim is lost
			}
			if result, err := s.all(nil); !strings.HasPrefix(result, "charge1 book1 mail") || err != nil {
				t.Errorf("the second attempt: %q, %v", result, err)
			}
			s.rows("book charge mail")
		})
	}
}

// The transaction of the request follows the steps, and is committed with the answer.
func TestTheTransactionOfTheRequestFollowsItsSteps(t *testing.T) {
	t.Parallel()
	db, _ := tables(t)
	s := newStepping(t, db, newStore(t, db))
	both := func(fails error) (string, error) {
		return s.do(func(ctx context.Context) (string, error) {
			if _, err := s.step(ctx, "charge", nil); err != nil {
				return "", err
			}
			tx, err := pgstore.Tx(ctx)
			if err == nil {
				_, err = tx.ExecContext(ctx, "INSERT INTO ledger VALUES ('order', 1)")
			}
			return "done", errors.Join(err, fails)
		})
	}
	if _, err := both(errors.New("no order today")); err == nil {
		t.Error("the function succeeds")
	}
	s.rows("charge")
	if result, err := both(nil); result != "done" || err != nil {
		t.Errorf("the second attempt: %q, %v", result, err)
	}
	s.rows("charge order")
}

// A step that ends its transaction by itself may have committed its rows without its result.
func TestAStepThatEndsItsTransactionIsUnknown(t *testing.T) {
	t.Parallel()
	db, _ := tables(t)
	s := newStepping(t, db, newStore(t, db), idempotency.Lease(time.Second))
	_, err := s.all(func(ctx context.Context, tx *pgstore.Transaction) error {
		_, err := tx.ExecContext(ctx, "COMMIT")
		return err
	})
	if !errors.Is(err, idempotency.ErrOutcomeUnknown) && !once.Permanent(err) {
		t.Errorf("the function returned %v; want an unknown outcome", err)
	}
	for end := soon(t); ; time.Sleep(50 * time.Millisecond) {
		_, err = s.all(nil)
		if errors.Is(err, idempotency.ErrOutcomeUnknown) || time.Now().After(end) {
			break
		}
	}
	if !errors.Is(err, idempotency.ErrOutcomeUnknown) {
		t.Errorf("after the lease: %v; want %v", err, idempotency.ErrOutcomeUnknown)
	}
	s.rows("book charge mail")
}

// TestTheCommitOfAStepWhoseReplyIsLost cuts the connection around the commit of the first step.
func TestTheCommitOfAStepWhoseReplyIsLost(t *testing.T) {
	for name, c := range map[string]struct {
		on    func(cut func([]byte) error) *wire
		first string // the rows after the first attempt
		last  string // the result of the last
	}{
		"not sent":            {func(cut func([]byte) error) *wire { return &wire{sending: cut} }, "", "charge2 book1 mail1"},
		"executed, not heard": {func(cut func([]byte) error) *wire { return &wire{answered: cut} }, "book charge mail", "charge1 book1 mail1"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db, dsn := tables(t)
			cut, arm, met := breaking(commit)
			s := newStepping(t, db, newStore(t, c.on(cut).through(t, dsn)))
			arm()
			if _, err := s.all(nil); (err == nil) != (c.first != "") || err != nil && !errors.Is(err, idempotency.ErrRolledBack) {
				t.Errorf("the first attempt: %v", err)
			}
			s.rows(c.first)
			if !met() {
				t.Error("no commit was cut")
			}
			if result, err := s.all(nil); result != c.last || err != nil {
				t.Errorf("the last attempt: %q, %v; want %q", result, err, c.last)
			}
			s.rows("book charge mail")
		})
	}
}
