//go:build integration && unix

package postgres_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/driver"
	"github.com/interlock-go/interlock/core/pgstore"
)

// called has a holder release a lock for which lockers wait, and then the last of these ask
// for it. It returns the answer, and how long after the release it came at the latest.
func called(t *testing.T, holder, waiting driver.Store, key string, waiters ...driver.Waiter) (rep driver.Reply, took time.Duration) {
	t.Helper()
	take(t, holder, key, "holder")
	for _, w := range waiters {
		if rep := takeAs(t, waiting, driver.AcquireRequest{Key: key, Owner: "of " + string(w), Waiter: w}); !rep.Listed {
			t.Fatalf("%s is not listed: %+v", w, rep)
		}
	}
	begin := time.Now()
	if err := free(t, holder, key, "holder"); err != nil {
		t.Fatal(err)
	}
	last := waiters[len(waiters)-1]
	rep = takeAs(t, waiting, driver.AcquireRequest{Key: key, Owner: "of " + string(last), Waiter: last})
	return rep, time.Since(begin)
}

// The turn of a far process is longer than the turn of a near process, by the server's clock.
func TestALockIsKeptForAsLongAsItsFirstLockerNeeds(t *testing.T) {
	t.Parallel()
	db, _ := tables(t)
	s := newStore(t, db)
	const lag = 5 * time.Millisecond // of the store's estimate of the clock, on a busy machine
	for letter := 'a'; letter <= 'q'; letter++ {
		first := driver.Waiter("first~" + string(letter))
		needs := first.Patience()
		n := 0
		eventually(t, "the second locker asks before the turn of the first has ended", func() bool {
			n++
			rep, took := called(t, s, s, fmt.Sprintf("%c%d", letter, n), first, "second~q")
			switch {
			case rep.Granted && took < needs:
				t.Fatalf("%s has %v, and lost its turn within %v", first, needs, took)
			case !rep.Granted && (rep.TTL > needs || rep.TTL < needs-took-lag):
				t.Fatalf("%s has %v, and after at most %v the second is to wait for %v", first, needs, took, rep.TTL)
			}
			return !rep.Granted
		})
	}
}

// A process that is far from the server announces its release when its answer has come. For
// so long the lock is kept, too: the process would be the first to ask again otherwise.
func TestALockThatAFarProcessReleasesIsKeptUntilItIsAnnounced(t *testing.T) {
	t.Parallel()
	db, dsn := tables(t)
	away := (&wire{sending: func(text []byte) error {
		if !isStatement(text) {
			return nil
		}
		_, err := db.ExecContext(context.Background(), "SELECT pg_sleep(0.1)") // also when the test ends
		return err
	}}).through(t, dsn)
	near, far := newStore(t, db), newStore(t, away, pgstore.Listen(deaf{}))
	take(t, far, "another key", "o")
	if err := free(t, far, "another key", "o"); err != nil { // now it knows the way
		t.Fatal(err)
	}
	n := 0
	eventually(t, "the lock is kept for as long as the first locker needs from then on", func() bool {
		n++
		rep, _ := called(t, far, near, fmt.Sprint(n), "first~a", "second~q")
		needs := driver.Waiter("first~a").Patience()
		return !rep.Granted && rep.TTL >= needs
	})
}

// A locker is in a full list once, and may say there that it needs another time.
func TestALockerInAFullListChangesWhatItNeeds(t *testing.T) {
	t.Parallel()
	db, _ := tables(t)
	s := newStore(t, db)
	take(t, s, "k", "holder")
	for i := range 120 {
		takeAs(t, s, driver.AcquireRequest{Key: "k", Owner: fmt.Sprint("o", i), Waiter: driver.Waiter(fmt.Sprint("w", i, "~a"))})
	}
	if rep := takeAs(t, s, driver.AcquireRequest{Key: "k", Owner: "o", Waiter: "w7~q"}); rep.Granted || !rep.Listed {
		t.Errorf("%+v", rep)
	}
	if list := listOf(t, db, "k"); !strings.Contains(list, ",w6~a,w7~q,w8~a,") || strings.Count(list, ",") != 119 {
		t.Errorf("the list has %q", list)
	}
}

// The server's clock is set back by an hour while a lock is kept for a locker that has died.
func TestALockIsNotKeptForLongerWhenTheClockIsSetBack(t *testing.T) {
	t.Parallel()
	db, _ := tables(t)
	s := newStore(t, db)
	take(t, s, "k", "holder")
	for _, name := range []string{"dead~a", "live~a"} {
		takeAs(t, s, driver.AcquireRequest{Key: "k", Owner: "of " + name, Waiter: driver.Waiter(name)})
	}
	if err := free(t, s, "k", "holder"); err != nil {
		t.Fatal(err)
	}
	if _, err := db.ExecContext(t.Context(), "UPDATE interlock_lock SET record = jsonb_set(record::jsonb, '{kept,since}', to_jsonb((record::jsonb->'kept'->>'since')::bigint + 3600000000))"); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the next locker has its turn", func() bool {
		rep := takeAs(t, s, driver.AcquireRequest{Key: "k", Owner: "of live~a", Waiter: "live~a"})
		if !rep.Granted && rep.TTL > time.Second {
			t.Fatalf("the next locker is to wait for %v; want the patience of the first, 5 ms", rep.TTL)
		}
		return rep.Granted
	})
}

// One table has two names: with its schema, and by the search_path of the role.
func TestATicketIsTakenUnderTheOtherNameOfTheTable(t *testing.T) {
	t.Parallel()
	db, dsn := tables(t)
	path, named := newStore(t, db), newStore(t, db, pgstore.Schema(schemaOf(dsn)))
	for key, c := range map[string]struct{ from, to *pgstore.Store }{"from the path": {path, named}, "to the path": {named, path}} {
		lease, err := newLocker(t, c.from).Lock(t.Context(), key)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := newLocker(t, c.to).TryLock(t.Context(), key); !errors.Is(err, core.ErrHeld) {
			t.Errorf("the lock under the other name: %v; want it locked, it is the same", err)
		}
		ticket, err := lease.HandOver(t.Context(), measured(t).Holds())
		if err != nil {
			t.Fatal(err)
		}
		taken, err := newLocker(t, c.to).TakeOver(t.Context(), ticket)
		if err != nil {
			t.Fatalf("%s: TakeOver: %v; want the lock", key, err)
		}
		if err := taken.Release(t.Context()); err != nil {
			t.Error(err)
		}
	}
}
