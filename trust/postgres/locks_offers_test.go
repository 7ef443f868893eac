//go:build integration && unix

package postgres_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/interlock-go/interlock/core/driver"
	"github.com/interlock-go/interlock/core/pgstore"
	"github.com/interlock-go/interlock/trust/internal/pgtest"
)

// reached has a locker of a store take offers, and waits until the store is reached.
func reached(t *testing.T, s *pgstore.Store, id string) (offers chan driver.Call) {
	t.Helper()
	offers, _ = reachedAnd(t, s, id)
	return offers
}

// reachedAnd also returns the turns of the locker.
func reachedAnd(t *testing.T, s *pgstore.Store, id string) (offers, turns chan driver.Call) {
	t.Helper()
	ready, offers, turns := make(chan bool, 100), make(chan driver.Call, 100), make(chan driver.Call, 100)
	t.Cleanup(s.Calls(id, func(c driver.Call) {
		switch c.What {
		case driver.Unsure:
			ready <- c.Reached
		case driver.Offered:
			offers <- c
		case driver.Turn:
			turns <- c
		case driver.Wanted, driver.Displaced:
		}
	}))
	for !receive(t, "the locker is reached", ready) {
	}
	return offers, turns
}

const offered = "SELECT coalesce(record::json->'kept'->>'offer', '') FROM interlock_lock WHERE key = 'k'"

// The process that releases a lock ends between the release and its announcement. The locker finds the call at its next
// look, and its own offer in the answer to its request.
func TestAnOfferThatIsNotAnnouncedIsFoundByALook(t *testing.T) {
	t.Parallel()
	db, dsn := tables(t)
	broken := newStore(t, (&wire{sending: func(text []byte) error {
		if bytes.Contains(text, []byte("pg_notify")) {
			return io.ErrUnexpectedEOF
		}
		return nil
	}}).through(t, dsn), pgstore.Listen(listener{dsn}))
	waiting := newStore(t, db, pgstore.Listen(listener{dsn}))
	offers, called := reachedAnd(t, waiting, "w")
	ask := driver.AcquireRequest{Key: "k", Owner: "w:0", Waiter: "w~A"}
	found := func() bool {
		take(t, broken, "k", "o:1")
		takeAs(t, waiting, ask)
		if err := free(t, broken, "k", "o:1"); err != nil {
			t.Fatal(err)
		}
		owner := read[string](t, db, offered)
		if !strings.HasPrefix(owner, "w:") {
			t.Fatalf("the offer in the row is to %q; expected is w", owner)
		}
		receive(t, "a look finds the call", called)
		// On a machine that stands still the offer may have ended.
		rep := takeAs(t, waiting, ask)
		if rep.Granted {
			return free(t, waiting, "k", "w:0") != nil
		}
		return rep.Holder == owner
	}
	eventually(t, "the locker finds its offer", found)
	if len(offers) > 0 {
		t.Errorf("%+v was announced; the test has gone blind", <-offers)
	}
}

// An offer is a grant: its locker begins without a request. So it is on the disk before it is announced, also against the
// session's default.
func TestAnOfferSurvivesACrashOfTheServer(t *testing.T) {
	t.Parallel()
	srv := pgtest.Start(t, "synchronous_commit=off", "wal_writer_delay=10s", "wal_writer_flush_after=0")
	holder := newStore(t, srv.Open(t), pgstore.Listen(listener{srv.DSN()}))
	migrate(t, holder)
	waiting := newStore(t, srv.Open(t), pgstore.Listen(listener{srv.DSN()}))
	offers := reached(t, waiting, "w")
	take(t, holder, "k", "o:1")
	takeAs(t, waiting, driver.AcquireRequest{Key: "k", Owner: "w:0", Waiter: "w~A"})
	if err := free(t, holder, "k", "o:1"); err != nil {
		t.Fatal(err)
	}
	o := receive(t, "the lock is offered", offers)
	srv.Abort(t)
	srv.Restart(t)
	if owner := read[string](t, srv.Open(t), offered); owner != ownerOf("w", o) {
		t.Errorf("after the crash the lock is offered to %q; expected is %q", owner, ownerOf("w", o))
	}
}

// The wait of a release for the standby is cancelled, and PostgreSQL keeps the release on the primary alone. The offer
// that it made is not announced, and is not shown to its locker either.
func TestWithoutTheSynchronousStandbyNothingIsOffered(t *testing.T) {
	t.Parallel()
	primary := pgtest.Start(t, "synchronous_standby_names=*")
	standby := primary.Standby(t)
	dsn := primary.DSN()
	migrate(t, newStore(t, primary.Open(t)))
	holder := newStore(t, primary.Open(t), pgstore.Listen(listener{dsn}), pgstore.Timeout(300*time.Millisecond))
	waiting := newStore(t, primary.Open(t), pgstore.Listen(listener{dsn}), pgstore.Timeout(300*time.Millisecond))
	offers := reached(t, waiting, "w")
	ask := driver.AcquireRequest{Key: "k", Owner: "w:0", Waiter: "w~A", TTL: time.Hour}
	for _, set := range []driver.AcquireRequest{{Key: "k", Owner: "o:1", TTL: time.Hour}, ask} {
		s := map[bool]*pgstore.Store{true: waiting, false: holder}[set.Waiter != ""]
		eventually(t, "the lock is held, and the locker waits", func() bool {
			rep, err := s.Acquire(t.Context(), set)
			return err == nil && (rep.Granted || rep.Listed)
		})
	}
	primary.Detach(t, standby)
	defer primary.Attach(t, standby)
	plain := primary.Open(t)
	var unsent atomic.Int64
	eventually(t, "the primary alone has the offer", func() bool {
		if err := free(t, holder, "k", "o:1"); err == nil {
			unsent.Add(1) // it says that an earlier try has released it
		}
		return read[string](t, plain, offered) != ""
	})
	for range 3 {
		rep, err := waiting.Acquire(t.Context(), ask)
		if err == nil && (rep.Granted || strings.HasPrefix(rep.Holder, "w:")) {
			t.Errorf("without the standby the locker is shown its offer: %+v", rep)
		}
		if err != nil && !errors.Is(err, driver.ErrUnavailable) && !errors.Is(err, driver.ErrNotReady) {
			t.Errorf("without the standby: %v", err)
		}
	}
	if len(offers) > 0 {
		t.Errorf("without the standby %+v is announced", <-offers)
	}
}

// ownerOf is the owner of an offer.
func ownerOf(id string, o driver.Call) string { return fmt.Sprintf("%s:%d", id, o.Token) }
