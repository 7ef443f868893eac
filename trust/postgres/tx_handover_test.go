//go:build integration && unix

package postgres_test

import (
	"context"
	"database/sql"
	"errors"
	"net/http"
	"testing"
	"time"

	"github.com/interlock-go/interlock/core/idempotency"
	"github.com/interlock-go/interlock/core/idempotency/endpoint"
	"github.com/interlock-go/interlock/core/pgstore"
)

// outbox hands the request of a handler over, and writes the ticket in its transaction.
func outbox(t *testing.T, r *http.Request, tx *pgstore.Transaction) idempotency.Ticket {
	t.Helper()
	ticket, err := idempotency.HandOver(r.Context(), time.Minute)
	if err != nil {
		t.Errorf("HandOver: %v", err)
	}
	text, err := ticket.MarshalText()
	if err != nil {
		t.Error(err)
	}
	if _, err := tx.ExecContext(r.Context(), "INSERT INTO outbox VALUES ($1::text)", string(text)); err != nil {
		t.Errorf("writing the ticket: %v", err)
	}
	return ticket
}

// tickets reads the tickets of the outbox.
func tickets(t *testing.T, db *sql.DB) (all []idempotency.Ticket) {
	t.Helper()
	rows, err := db.QueryContext(t.Context(), "SELECT ticket FROM outbox")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = rows.Close() }()
	for rows.Next() {
		var text []byte
		var ticket idempotency.Ticket
		if err := errors.Join(rows.Scan(&text), ticket.UnmarshalText(text)); err != nil {
			t.Fatal(err)
		}
		all = append(all, ticket)
	}
	if err := rows.Err(); err != nil {
		t.Fatal(err)
	}
	return all
}

// books is a job that makes a payment in its transaction.
func books(ctx context.Context) (endpoint.Response, error) {
	tx, err := pgstore.Tx(ctx)
	if err == nil {
		_, err = tx.ExecContext(ctx, "INSERT INTO ledger VALUES ('by the job', 1)")
	}
	return endpoint.Response{Status: http.StatusCreated, Body: []byte("paid")}, err
}

func TestATicketInARowIsCommittedWithTheInterimAnswer(t *testing.T) {
	t.Parallel()
	db, _ := tables(t)
	execute(t, db, "CREATE TABLE outbox (ticket text)")
	store := newStore(t, db)
	engine := newEngine(t, store)
	fail := true
	var failed idempotency.Ticket
	s := newService(t, db, store, func(w http.ResponseWriter, r *http.Request, tx *pgstore.Transaction) {
		pay(t, r, tx)
		ticket := outbox(t, r, tx)
		if fail {
			failed = ticket
			http.Error(w, "no", http.StatusInternalServerError)
			return
		}
		w.WriteHeader(http.StatusAccepted)
		say(w, "accepted")
	})
	s.want("a", 500, "no")
	s.paid(0)
	if all := tickets(t, db); len(all) > 0 {
		t.Errorf("a handler that failed has left %d tickets", len(all))
	}
	if err := engine.TakeOver(t.Context(), failed, books); !errors.Is(err, idempotency.ErrTicketRanOut) {
		t.Errorf("the ticket of a handler that failed: %v; want ErrTicketRanOut", err)
	}
	fail = false
	s.want("a", 202, "accepted")
	s.paid(1)
	if resp := s.want("a", 202, "accepted"); resp.Header.Get(idempotency.InterimHeader) != "true" {
		t.Error("the duplicate got no interim answer")
	}
	all := tickets(t, db)
	if len(all) != 1 {
		t.Fatalf("the handler has committed %d tickets; want 1", len(all))
	}
	away := errors.New("the bank is away")
	err := engine.TakeOver(t.Context(), all[0], func(ctx context.Context) (endpoint.Response, error) {
		answer, err := books(ctx)
		return answer, errors.Join(err, away)
	})
	if !errors.Is(err, away) {
		t.Errorf("TakeOver: %v; want the job's error", err)
	}
	s.paid(1)
	if err := engine.TakeOver(t.Context(), all[0], books); err != nil {
		t.Errorf("TakeOver: %v", err)
	}
	s.paid(2)
	s.want("a", 201, "paid")
	if err := engine.TakeOver(t.Context(), all[0], books); !errors.Is(err, idempotency.ErrTicketFinished) {
		t.Errorf("TakeOver: %v; want ErrTicketFinished", err)
	}
	s.paid(2)
}

func TestAJobThatIsFasterThanTheTransactionOfItsHandler(t *testing.T) {
	t.Parallel()
	db, _ := tables(t)
	execute(t, db, "CREATE TABLE outbox (ticket text)")
	store := newStore(t, db)
	engine := newEngine(t, store)
	s := newService(t, db, store, func(w http.ResponseWriter, r *http.Request, tx *pgstore.Transaction) {
		pay(t, r, tx)
		early := outbox(t, r, tx) // by a message, in earnest
		if err := engine.TakeOver(r.Context(), early, books); !errors.Is(err, idempotency.ErrTicketTaken) {
			t.Errorf("TakeOver before the commit: %v; want %v: the message comes again later", err, idempotency.ErrTicketTaken)
		}
		w.WriteHeader(http.StatusAccepted)
		say(w, "accepted")
	})
	s.want("a", 202, "accepted")
	for _, ticket := range tickets(t, db) {
		if err := engine.TakeOver(t.Context(), ticket, books); err != nil {
			t.Errorf("TakeOver after the commit: %v", err)
		}
	}
	s.want("a", 201, "paid")
	s.paid(2)
}

// From REPEATABLE READ on a transaction does not see what another connection changes after its
// first statement.
func TestARequestIsHandedOverInATransactionOfEachLevel(t *testing.T) {
	for _, level := range []sql.IsolationLevel{sql.LevelReadCommitted, sql.LevelRepeatableRead, sql.LevelSerializable} {
		t.Run(level.String(), func(t *testing.T) {
			t.Parallel()
			db, _ := tables(t)
			execute(t, db, "CREATE TABLE outbox (ticket text)")
			store := newStore(t, db, pgstore.Isolation(level))
			engine := newEngine(t, store)
			s := newService(t, db, store, func(w http.ResponseWriter, r *http.Request, tx *pgstore.Transaction) {
				pay(t, r, tx)
				outbox(t, r, tx)
				w.WriteHeader(http.StatusAccepted)
				say(w, "accepted")
			})
			s.want("a", 202, "accepted")
			s.paid(1)
			all := tickets(t, db)
			if len(all) != 1 {
				t.Fatalf("the handler has committed %d tickets; want 1", len(all))
			}
			further := errors.New("the job fails after a hand-over that its transaction does not commit")
			err := engine.TakeOver(t.Context(), all[0], func(ctx context.Context) (answer endpoint.Response, err error) {
				if answer, err = books(ctx); err == nil {
					_, err = idempotency.HandOver(ctx, time.Hour)
				}
				return answer, errors.Join(err, further)
			})
			if !errors.Is(err, further) {
				t.Errorf("TakeOver: %v; want the job's error", err)
			}
			s.paid(1)
			if err := engine.TakeOver(t.Context(), all[0], books); err != nil {
				t.Errorf("TakeOver: %v", err)
			}
			s.paid(2)
			s.want("a", 201, "paid")
		})
	}
}

// The handler's own COMMIT is found, also where the transaction has an interim answer.
func TestAHandlerThatEndsItsTransactionAfterHandOver(t *testing.T) {
	t.Parallel()
	db, _ := tables(t)
	execute(t, db, "CREATE TABLE outbox (ticket text)")
	store := newStore(t, db)
	s := newService(t, db, store, func(w http.ResponseWriter, r *http.Request, tx *pgstore.Transaction) {
		outbox(t, r, tx)
		if _, err := tx.ExecContext(r.Context(), "COMMIT"); err != nil {
			t.Error(err)
		}
		w.WriteHeader(http.StatusAccepted)
	})
	s.want("a", 409, unknownOutcome)
}

// TestACommitOfAnInterimAnswerWhoseReplyIsLost cuts the connection around the first commit.
func TestACommitOfAnInterimAnswerWhoseReplyIsLost(t *testing.T) {
	for name, c := range map[string]struct {
		on    func(cut func([]byte) error) *wire
		first int // the status
		paid  int // after the first answer
	}{
		"not sent":            {func(cut func([]byte) error) *wire { return &wire{sending: cut} }, 503, 0},
		"executed, not heard": {func(cut func([]byte) error) *wire { return &wire{answered: cut} }, 202, 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db, dsn := tables(t)
			execute(t, db, "CREATE TABLE outbox (ticket text)")
			cut, arm, met := breaking(commit)
			store := newStore(t, c.on(cut).through(t, dsn))
			engine := newEngine(t, newStore(t, db))
			s := newService(t, db, store, func(w http.ResponseWriter, r *http.Request, tx *pgstore.Transaction) {
				pay(t, r, tx)
				outbox(t, r, tx)
				w.WriteHeader(http.StatusAccepted)
				say(w, "accepted")
			})
			arm()
			s.want("a", c.first, "")
			s.paid(c.paid)
			if !met() {
				t.Error("no commit was cut")
			}
			s.want("a", 202, "accepted")
			s.paid(1)
			all := tickets(t, db)
			if len(all) != 1 {
				t.Fatalf("%d tickets are committed; want 1", len(all))
			}
			if err := engine.TakeOver(t.Context(), all[0], books); err != nil {
				t.Errorf("TakeOver: %v", err)
			}
			s.paid(2)
			s.want("a", 201, "paid")
		})
	}
}
