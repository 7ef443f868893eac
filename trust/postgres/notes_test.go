//go:build integration && unix

package postgres_test

import (
	"bytes"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/interlock-go/interlock/core/driver"
)

// Each ticket that was taken is noted for an hour after its end. The notes must not make the locks of
// their key dearer.
func TestALockIsAsCheapAfterHandOversAsBefore(t *testing.T) {
	t.Parallel()
	db, dsn := tables(t)
	var statements atomic.Int64
	w := &wire{sending: func(text []byte) error {
		if bytes.Contains(text, []byte("interlock_lock")) && !bytes.Contains(text, []byte("pg_relation_size")) {
			statements.Add(1)
		}
		return nil
	}}
	s := newStore(t, w.through(t, dsn))
	acquire := func(owner, from string, noted time.Duration) error {
		rep, err := s.Acquire(t.Context(), driver.AcquireRequest{Key: "k", Owner: owner, From: from, TTL: time.Minute, Noted: noted})
		if err == nil && !rep.Granted {
			err = errors.New("refused")
		}
		return err
	}
	release := func(owner string) {
		if _, err := s.Release(t.Context(), driver.ReleaseRequest{Key: "k", Owner: owner, TTL: time.Minute, Deadline: time.Now().Add(time.Minute)}); err != nil {
			t.Fatalf("the release of %s: %v; expected is none", owner, err)
		}
	}
	pair := func(owner string) (n int64) {
		before := statements.Load()
		if err := acquire(owner, "", 0); err != nil {
			t.Fatalf("the lock of %s: %v; expected is a grant", owner, err)
		}
		release(owner)
		return statements.Load() - before
	}
	pair("first:1") // makes the row
	want := pair("first:2")
	const handOvers = 100
	for i := range handOvers {
		holder, ticket, taker := fmt.Sprint("a:", i), fmt.Sprint("t:", i), fmt.Sprint("b:", i)
		for _, err := range []error{acquire(holder, "", 0), acquire(ticket, holder, 0), acquire(taker, ticket, time.Hour)} {
			if err != nil {
				t.Fatalf("hand-over %d: %v; expected is none", i, err)
			}
		}
		release(taker)
	}
	for i := range 3 {
		if n := pair(fmt.Sprint("last:", i)); n != want {
			t.Errorf("after the hand-overs a lock and its release take %d statements; expected are %d, as before", n, want)
		}
	}
	var size, rows int
	if err := db.QueryRowContext(t.Context(), "SELECT pg_column_size(l) FROM interlock_lock l WHERE key = 'k'").Scan(&size); err != nil || size > 200 {
		t.Errorf("after the hand-overs the row of the lock has %d bytes (%v); expected are at most 200", size, err)
	}
	for i := range handOvers {
		if err := acquire("late:1", fmt.Sprint("t:", i), time.Hour); !errors.Is(err, driver.ErrPassedOn) {
			t.Fatalf("the ticket %d is brought again: %v; expected is ErrPassedOn", i, err)
		}
	}
	// The sweep deletes a note as it deletes the row of a lock that has ended.
	if err := db.QueryRowContext(t.Context(), "SELECT count(*) FROM interlock_lock WHERE record = '' AND token = 0"+
		" AND lease_until BETWEEN now() + interval '59 minutes' AND now() + interval '62 minutes'").Scan(&rows); err != nil || rows != handOvers {
		t.Errorf("%d rows are notes that end an hour after their tickets (%v); expected are %d", rows, err, handOvers)
	}
}

// The operator is another process. The note is no part of the row of the lock, and costs later locks nothing.
func TestAnOwnerLearnsThatAnOperatorOfAnotherProcessHasReleasedItsLocks(t *testing.T) {
	t.Parallel()
	db, dsn := tables(t)
	var statements atomic.Int64
	w := &wire{sending: func(text []byte) error {
		if bytes.Contains(text, []byte("interlock_lock")) && !bytes.Contains(text, []byte("pg_relation_size")) {
			statements.Add(1)
		}
		return nil
	}}
	s, operator := newStore(t, w.through(t, dsn)), newStore(t, db)
	pair := func(owner string) int64 {
		before := statements.Load()
		take(t, s, "k", owner)
		if _, err := s.Release(t.Context(), driver.ReleaseRequest{Key: "k", Owner: owner, TTL: time.Minute, Deadline: soon(t)}); err != nil {
			t.Fatalf("the release of %s: %v; expected is none", owner, err)
		}
		return statements.Load() - before
	}
	pair("first:1") // makes the row
	want := pair("first:2")
	const locks = 40
	var batch []driver.Renewal
	for i := range locks {
		key, owner := fmt.Sprint("k", i), fmt.Sprint("a:", i)
		rep := take(t, s, key, owner)
		batch = append(batch, driver.Renewal{Key: key, Owner: owner, TTL: time.Minute})
		if i == 0 {
			continue
		}
		if _, err := operator.Release(t.Context(), driver.ReleaseRequest{
			Key: key, Owner: owner, Token: rep.Token, Revoked: time.Minute, Deadline: soon(t),
		}); err != nil {
			t.Fatalf("the operator releases the lock of %s: %v; expected is no error", owner, err)
		}
	}
	before := statements.Load()
	s.Renew(t.Context(), batch, func(i int, _ bool, err error) {
		if i == 0 && err != nil || i > 0 && !errors.Is(err, driver.ErrRevoked) {
			t.Errorf("the renewal %d: %v; expected is ErrRevoked, and no error for the first", i, err)
		}
	})
	if n := statements.Load() - before; n != 2 {
		t.Errorf("the renewal of %d leases took %d statements; expected is one, and one that reads all notes", locks, n)
	}
	for i := range 3 {
		if n := pair(fmt.Sprint("last:", i)); n != want {
			t.Errorf("after the releases of the operator a lock and its release take %d statements; expected are %d, as before", n, want)
		}
	}
	if n := read[int](t, db, "SELECT count(*) FROM interlock_lock WHERE record = '' AND token = 1"); n != locks-1 {
		t.Errorf("there are %d notes; expected are %d", n, locks-1)
	}
}
