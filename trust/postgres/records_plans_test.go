//go:build integration && unix

package postgres_test

import (
	"bytes"
	"database/sql"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/interlock-go/interlock/core/driver"
	"github.com/interlock-go/interlock/core/idempotency/record"
	"github.com/interlock-go/interlock/core/pgstore"
)

// manyRecords is how many records the tests of plans have in the table.
const manyRecords = 20_000

// Drivers keep statements prepared, and PostgreSQL keeps their plans. A plan that was made
// for a table of three rows reads all rows of the table, and stays when the table has grown.
func TestAGrowingTableOfRecordsIsReadByItsKeys(t *testing.T) {
	t.Parallel()
	db, dsn := tables(t)
	// Without an analysis in the background no plan is made anew.
	execute(t, db, "ALTER TABLE interlock_record SET (autovacuum_enabled = off)")
	session := connect(t, dsn)
	session.SetMaxOpenConns(1)
	s := newStore(t, session)
	for round := range 2 {
		live(t, s, fmt.Sprint("few", round), 12) // PostgreSQL keeps the plan of the sixth execution
		execute(t, db, "DELETE FROM interlock_record")
		live(t, s, "stays", 1)
		execute(t, db, "VACUUM ANALYZE interlock_record")
	}
	live(t, s, "blind", 12)
	if reads(t, session).scanned == 0 {
		t.Error("no statement scans a table of a few rows; the test needs a plan that does")
	}
	insertRecords(t, db, manyRecords, "1 day")
	eventually(t, "the store sends statements for the new size", func() bool {
		before := reads(t, session)
		live(t, s, "grown", 1)
		return reads(t, session).scanned == before.scanned
	})
	before := reads(t, session)
	live(t, s, "many", 12)
	if n := reads(t, session).scanned - before.scanned; n != 0 {
		t.Errorf("12 requests scanned %d rows of a table of %d, want none", n, manyRecords)
	}
}

// The sweep runs once a minute in each process, however many records are kept.
func TestTheSweepReadsNoRecordThatIsKept(t *testing.T) {
	t.Parallel()
	db, dsn := tables(t)
	insertRecords(t, db, manyRecords, "1 day")
	insertRecords(t, db, 3, "-2 hours")
	execute(t, db, "VACUUM ANALYZE interlock_record")
	session := connect(t, dsn)
	session.SetMaxOpenConns(1)
	before := reads(t, session)
	newStore(t, session, pgstore.SweepEvery(time.Millisecond))
	eventually(t, "the sweep deletes the records that have expired", func() bool {
		// The counts are of all sessions, so this look must not read the table.
		return read[int](t, db, "SELECT n_tup_del FROM pg_stat_user_tables WHERE relid = 'interlock_record'::regclass") == 3
	})
	var got readRows
	eventually(t, "the sweep has run 20 times, with the plan that PostgreSQL keeps", func() bool {
		got = reads(t, session)
		return got.looks-before.looks >= 20
	})
	n, looks := got.scanned+got.indexed-before.scanned-before.indexed, got.looks-before.looks
	if n > 10*looks {
		t.Errorf("%d sweeps read %d rows, want about the 3 each that had expired of %d", looks, n, manyRecords)
	}
}

// manyLocks makes a session, and a table with many locks that were free a moment ago.
func manyLocks(t *testing.T, on *wire) (session *sql.DB) {
	t.Helper()
	db, dsn := tables(t)
	execute(t, db, `INSERT INTO interlock_lock (key, record, token, lease_until)
		SELECT convert_to('k' || i, 'UTF8'), '{"v":1,"token":1}', 1, now() FROM generate_series(1, $1) AS i`, manyRecords)
	execute(t, db, "VACUUM ANALYZE interlock_lock")
	session = on.through(t, dsn)
	session.SetMaxOpenConns(1)
	return session
}

// scannedLocks is how many rows of the table of locks a session has read by going through it.
func scannedLocks(t *testing.T, session *sql.DB) int64 {
	t.Helper()
	execute(t, session, "SELECT pg_stat_force_next_flush()")
	execute(t, session, "SELECT 1")
	return read[int64](t, session, "SELECT seq_tup_read FROM pg_stat_user_tables WHERE relid = 'interlock_lock'::regclass")
}

// The locks have no index that finds old rows. A sweep goes through the table, in parts.
func TestASweepReadsAPartOfTheTableOfLocks(t *testing.T) {
	t.Parallel()
	var parts atomic.Int64
	session := manyLocks(t, &wire{sending: func(text []byte) error {
		if bytes.Contains(text, []byte("SKIP LOCKED")) {
			parts.Add(1)
		}
		return nil
	}})
	pages := read[int64](t, session, "SELECT pg_relation_size('interlock_lock') / current_setting('block_size')::bigint")
	before := scannedLocks(t, session)
	take(t, newStore(t, session, pgstore.SweepEvery(100*time.Millisecond)), "k", "o")
	eventually(t, "the sweep has read 20 parts", func() bool { return parts.Load() >= 20 })
	n, swept := scannedLocks(t, session)-before, parts.Load() // or more, as the sweep goes on
	if most := (swept + 1) * 2 * 64 * manyRecords / pages; n == 0 || n > most {
		t.Errorf("%d parts of the sweep read %d rows of %d on %d pages; want up to %d, twice what 64 pages each have", swept, n, manyRecords, pages, most)
	}
}

func TestPlacesLooksAndListsReadLocksByTheirKeys(t *testing.T) {
	t.Parallel()
	session := manyLocks(t, new(wire))
	s := newStore(t, session)
	take(t, s, "k1", "o") // and the store learns the size of the table
	eventually(t, "the size of the table is looked at", func() bool {
		before := scannedLocks(t, session)
		take(t, s, "k2", "o")
		return scannedLocks(t, session) == before
	})
	before := scannedLocks(t, session)
	for n := range 12 {
		owner := fmt.Sprint("o:", n)
		ask := driver.AcquireRequest{Key: "k7", Owner: owner, Kind: driver.Permit, AtMost: 2}
		if rep := takeAs(t, s, ask); !rep.Granted {
			t.Fatalf("%+v; want it granted", rep)
		}
		s.Renew(t.Context(), []driver.Renewal{{Key: "k7", Owner: owner, Kind: driver.Permit, TTL: time.Hour, Asked: true}}, func(_ int, _ bool, err error) {
			if err != nil {
				t.Errorf("Renew: %v", err)
			}
		})
		if _, err := s.Release(t.Context(), driver.ReleaseRequest{Key: "k7", Owner: owner, Kind: driver.Permit, AtMost: 2, TTL: time.Hour, Deadline: soon(t)}); err != nil {
			t.Errorf("Release: %v", err)
		}
		if _, err := s.Look(t.Context(), "k7"); err != nil {
			t.Errorf("Look: %v", err)
		}
		for _, err := range s.List(t.Context(), "k1999", nil) {
			if err != nil {
				t.Errorf("List: %v", err)
			}
		}
	}
	woken := make(chan struct{}, 1)
	takeAs(t, s, driver.AcquireRequest{Key: "k1", Owner: "p", Waiter: "w1"})
	stop := s.Calls("w1", func(driver.Call) {
		select {
		case woken <- struct{}{}:
		default:
		}
	})
	defer stop()
	if err := free(t, newStore(t, session), "k1", "o"); err != nil {
		t.Fatal(err)
	}
	receive(t, "a look finds the release", woken)
	if n := scannedLocks(t, session) - before; n != 0 {
		t.Errorf("%d rows of a table of %d were read by going through it; want none", n, manyRecords)
	}
}

// live has some records live through all that a request does.
func live(t *testing.T, s *pgstore.Store, name string, times int) {
	t.Helper()
	for n := range times {
		id, deadline := fmt.Sprintf("%s-%d", name, n), soon(t)
		ask := record.ClaimRequest{ID: id, Token: "t", Lease: time.Hour, Retention: time.Hour, Deadline: deadline, Late: func(record.ClaimReply, error) {}}
		for _, token := range []string{"t", "u"} { // the second finds the record in flight
			ask.Token = token
			if _, err := s.Claim(t.Context(), ask); err != nil {
				t.Fatalf("Claim: %v", err)
			}
		}
		s.Extend(t.Context(), []record.Extension{{ID: id, Token: "t", Lease: time.Hour, Retention: time.Hour}}, func(_ int, err error) {
			if err != nil {
				t.Errorf("Extend: %v", err)
			}
		})
		if err := s.Mark(t.Context(), record.MarkRequest{ID: id, Token: "t", Lease: time.Hour, Retention: time.Hour, Deadline: deadline}); err != nil {
			t.Errorf("Mark: %v", err)
		}
		if _, err := s.Commit(t.Context(), record.CommitRequest{
			ID: id, Token: "t", Generation: 1, Response: []byte("response"), Retention: time.Hour, Deadline: deadline,
		}); err != nil {
			t.Errorf("Commit: %v", err)
		}
		ask.ID, ask.Token = id+"-abandoned", "t"
		if _, err := s.Claim(t.Context(), ask); err != nil {
			t.Fatalf("Claim: %v", err)
		}
		if err := s.Abandon(t.Context(), record.AbandonRequest{ID: ask.ID, Token: "t", Deadline: deadline}); err != nil {
			t.Errorf("Abandon: %v", err)
		}
		if err := s.Resolve(t.Context(), record.ResolveRequest{ID: ask.ID, Token: "t", Deadline: deadline}); err != nil && !errors.Is(err, record.ErrNotUnknown) {
			t.Errorf("Resolve: %v", err)
		}
		if err := s.Forget(t.Context(), ask.ID); err != nil {
			t.Errorf("Forget: %v", err)
		}
	}
}

// readRows counts the rows of the table of records that a session read.
type readRows struct {
	scanned int64 // by going through the table
	indexed int64 // through its indexes
	looks   int64 // how often an index was searched
}

// reads returns the counts of a pool of one connection. The statistics are the session's own.
func reads(t *testing.T, session *sql.DB) (n readRows) {
	t.Helper()
	execute(t, session, "SELECT pg_stat_force_next_flush()")
	execute(t, session, "SELECT 1")
	n.scanned = read[int64](t, session, "SELECT seq_tup_read FROM pg_stat_user_tables WHERE relid = 'interlock_record'::regclass")
	n.indexed = read[int64](t, session, "SELECT sum(idx_tup_read)::bigint FROM pg_stat_user_indexes WHERE relid = 'interlock_record'::regclass")
	n.looks = read[int64](t, session, "SELECT sum(idx_scan)::bigint FROM pg_stat_user_indexes WHERE relid = 'interlock_record'::regclass")
	return n
}

// insertRecords inserts completed records that are kept for a time from now on.
func insertRecords(t *testing.T, db *sql.DB, n int, keep string) {
	t.Helper()
	execute(t, db, `INSERT INTO interlock_record
		(id, token, fingerprint, generation, state, marked, waits, lease_until, keep_until, sweep_hour)
		SELECT $2 || i, 't', '', 1, 'd', false, false, now(), now() + $2::interval,
			floor(extract(epoch FROM now() + $2::interval) / 3600)::integer + 1
		FROM generate_series(1, $1) AS i`, n, keep)
}
