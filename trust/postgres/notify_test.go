//go:build integration && unix

package postgres_test

import (
	"database/sql"
	"fmt"
	"net/http"
	"testing"

	"github.com/interlock-go/interlock/core/driver"
	"github.com/interlock-go/interlock/core/idempotency/record"
	"github.com/interlock-go/interlock/core/pgstore"
	"github.com/interlock-go/interlock/internal/logtest"
	"github.com/interlock-go/interlock/trust/internal/pgtest"
)

// TestWhatCannotBeAnnouncedIsDone has announcements fail at once (the right is missing), fail
// at the commit (the queue of NOTIFY is full), and wait (for the commit of another
// announcement): the announced change happens, and at once.
func TestWhatCannotBeAnnouncedIsDone(t *testing.T) {
	const refuses = `CREATE TABLE queue (payload text);
CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'refused' USING ERRCODE = '54000'; END $$;
CREATE FUNCTION pg_notify(text, text) RETURNS void LANGUAGE sql AS 'INSERT INTO queue VALUES ($2)';
CREATE CONSTRAINT TRIGGER refuses AFTER INSERT ON queue `
	for name, c := range map[string]struct {
		notify string // makes a function pg_notify that is found before PostgreSQL's
		fails  bool
	}{
		"fails at once":       {refuses + "FOR EACH ROW EXECUTE FUNCTION refuse()", true},
		"fails at the commit": {refuses + "DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION refuse()", true},
		"waits":               {"CREATE FUNCTION pg_notify(text, text) RETURNS void LANGUAGE sql AS 'LOCK TABLE gate'", false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dsn := pgtest.DSN(t) + ",pg_catalog" // after the schema
			db := connect(t, dsn)
			execute(t, db, "CREATE TABLE gate (); "+c.notify)
			var log logtest.Log
			store := newStore(t, db, pgstore.Listen(deaf{}), pgstore.Logger(log.Logger()))
			migrate(t, store)
			unannounced(t, db, store)
			if c.fails {
				eventually(t, "the log says that announcements fail, and why, once", func() bool {
					return log.Count("NOTIFY has failed") == 1 && log.Count("SQLSTATE 54000") == 1
				})
			}
		})
	}
}

// unannounced has a lock released, and requests end, which others wait for.
func unannounced(t *testing.T, db *sql.DB, store *pgstore.Store) {
	t.Helper()
	paying := newService(t, db, store, func(w http.ResponseWriter, r *http.Request, tx *pgstore.Transaction) {
		execute(t, db, "UPDATE interlock_record SET waits = true") // as duplicates have it
		pay(t, r, tx)
		say(w, "paid")
	})
	gate, err := db.BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = gate.Rollback() }()
	execute(t, gate, "LOCK TABLE gate")

	for _, owner := range []string{"o", "waits"} {
		takeAs(t, store, driver.AcquireRequest{Key: "k", Owner: owner, Waiter: "w"})
	}
	if err := free(t, store, "k", "o"); err != nil {
		t.Errorf("a release: %v", err)
	}
	if rep := takeAs(t, store, driver.AcquireRequest{Key: "k", Owner: "next", Waiter: "w"}); !rep.Granted {
		t.Errorf("the lock was not released: %+v", rep)
	}

	awaited(t, store, "given up")
	if err := giveUp(t, store, "given up"); err != nil {
		t.Errorf("a claim that is given up: %v", err)
	}
	awaited(t, store, "completed")
	if err := complete(t, store, "completed"); err != nil {
		t.Errorf("a commit: %v", err)
	}
	if rep := claimAs(t, store, "completed", "second"); rep.State != record.StateCompleted || rep.Response != "r" {
		t.Errorf("after the commit: %+v", rep)
	}

	paying.want("a", 200, "paid")
	paying.want("a", 200, "paid")
	if n := paying.runs.Load(); n != 1 {
		t.Errorf("the payment ran %d times; want once, and a replay", n)
	}
	paying.paid(1)
}

// awaited has a claim made while a duplicate waits for it, and returns the channel of the
// duplicate's notifications. The store has to listen; awaited waits until it does.
func awaited(t *testing.T, s *pgstore.Store, id string) (told chan struct{}) {
	t.Helper()
	told = make(chan struct{}, 100)
	t.Cleanup(s.Await(id, soon(t), func() { told <- struct{}{} }))
	claimAs(t, s, id, "first")
	eventually(t, "a duplicate is to be told", func() bool { return claimAs(t, s, id, "second").Listed })
	for len(told) > 0 {
		<-told
	}
	return told
}

// claimAs claims a record. A duplicate waits.
func claimAs(t *testing.T, s *pgstore.Store, id, token string) record.ClaimReply {
	t.Helper()
	rep, err := s.Claim(t.Context(), record.ClaimRequest{
		ID: id, Token: token, Lease: measured(t).Holds(), Retention: 2 * measured(t).Holds(), Waits: true,
		Deadline: soon(t), Late: func(record.ClaimReply, error) {},
	})
	if err != nil {
		t.Fatal(err)
	}
	return rep
}

// giveUp gives the first claim of a record up.
func giveUp(t *testing.T, s *pgstore.Store, id string) error {
	t.Helper()
	return s.Abandon(t.Context(), record.AbandonRequest{ID: id, Token: "first", Deadline: soon(t)})
}

// complete stores the response of the first claim.
func complete(t *testing.T, s *pgstore.Store, id string) error {
	t.Helper()
	rep, err := s.Commit(t.Context(), record.CommitRequest{
		ID: id, Token: "first", Generation: 1, Response: []byte("r"), Retention: 2 * measured(t).Holds(), Deadline: soon(t),
	})
	if err == nil && rep.State != record.StateGranted {
		err = fmt.Errorf("%+v", rep)
	}
	return err
}

// If a store finds out an outcome only by a second try, the outcome is announced, too.
func TestAnOutcomeWhoseReplyIsLostIsAnnounced(t *testing.T) {
	t.Parallel()
	_, dsn := tables(t)
	here := newStore(t, connect(t, dsn), pgstore.Listen(listener{dsn}))
	for what, end := range map[string]func(*testing.T, *pgstore.Store, string) error{"given up": giveUp, "completed": complete} {
		lost, arm, met := breaking([]byte("interlock_record"))
		there := newStore(t, (&wire{answered: lost}).through(t, dsn), pgstore.Listen(deaf{}))
		told := awaited(t, here, what)
		arm()
		if err := end(t, there, what); err != nil || !met() {
			t.Errorf("%s: %v; a reply was lost: %v", what, err, met())
		}
		receive(t, "what was "+what+" is announced", told)
	}
}

// A duplicate that looks again asks for the announcement no more: a look writes nothing.
func TestADuplicateAsksForAnAnnouncementOnce(t *testing.T) {
	t.Parallel()
	db, _ := tables(t)
	s := newStore(t, db, pgstore.Listen(deaf{}))
	awaited(t, s, "id")
	const version = "SELECT xmin::text FROM interlock_record"
	before := read[string](t, db, version)
	if rep := claimAs(t, s, "id", "third"); !rep.Listed {
		t.Errorf("another duplicate is not to be told: %+v", rep)
	}
	if after := read[string](t, db, version); after != before {
		t.Errorf("the row was written by transaction %s after %s", after, before)
	}
}
