//go:build integration && unix

package postgres_test

import (
	"net/http"
	"testing"
	"time"

	"github.com/interlock-go/interlock/core/driver"
	"github.com/interlock-go/interlock/core/idempotency/record"
	"github.com/interlock-go/interlock/core/pgstore"
	"github.com/interlock-go/interlock/trust/internal/pgtest"
)

// claimedBy claims a record.
func claimedBy(t *testing.T, s *pgstore.Store, token string, transactional bool) {
	t.Helper()
	rep, err := s.Claim(t.Context(), record.ClaimRequest{
		ID: "r", Token: token, Lease: time.Hour, Retention: 2 * time.Hour, Transactional: transactional,
		Deadline: soon(t), Late: func(record.ClaimReply, error) {},
	})
	if err != nil || rep.State != record.StateGranted {
		t.Fatalf("Claim: %+v, %v; want it granted", rep, err)
	}
}

// lapse ends the lease of the record.
func lapse(t *testing.T, s *pgstore.Store, server *pgtest.Server) {
	t.Helper()
	claimedBy(t, s, "first", false)
	execute(t, server.Open(t), "UPDATE interlock_record SET lease_until = clock_timestamp() - interval '1 second'")
}

// marked marks the claim, or hands it over.
func marked(t *testing.T, s *pgstore.Store, handOver bool) {
	t.Helper()
	if err := s.Mark(t.Context(), record.MarkRequest{ID: "r", Token: "first", Lease: time.Hour, Retention: 2 * time.Hour, HandOver: handOver, Deadline: soon(t)}); err != nil {
		t.Fatalf("Mark: %v", err)
	}
}

// stored stores an answer.
func stored(t *testing.T, s *pgstore.Store, interim bool) {
	t.Helper()
	rep, err := s.Commit(t.Context(), record.CommitRequest{
		ID: "r", Token: "first", Generation: 1, Response: []byte("paid"), Interim: interim, Retention: 2 * time.Hour, Deadline: soon(t),
	})
	if err != nil || rep.State != record.StateGranted {
		t.Fatalf("Commit: %+v, %v; want it stored", rep, err)
	}
}

// TestWhatWasAnsweredSurvivesACrashWithSynchronousCommitOff ends a server after each request that a
// promise rests on. With synchronous_commit off, as a default of the server, a role or a database, a
// commit is answered before it is on the disk.
func TestWhatWasAnsweredSurvivesACrashWithSynchronousCommitOff(t *testing.T) {
	t.Parallel()
	server := pgtest.Start(t, "synchronous_commit=off", "wal_writer_delay=10000", "autovacuum=off")
	setup := server.Open(t)
	migrate(t, newStore(t, setup))
	execute(t, setup, "CREATE TABLE ledger (payment text, amount bigint)")
	for name, c := range map[string]struct {
		before func(*testing.T, *pgstore.Store)
		act    func(*testing.T, *pgstore.Store)
		kept   string // of the record r
	}{
		"a claim": {
			act: func(t *testing.T, s *pgstore.Store) { claimedBy(t, s, "first", false) }, kept: "token = 'first'",
		},
		"a claim that takes over": {
			before: func(t *testing.T, s *pgstore.Store) { lapse(t, s, server) },
			act:    func(t *testing.T, s *pgstore.Store) { claimedBy(t, s, "second", false) }, kept: "token = 'second' AND generation = 2",
		},
		"a transactional claim that was claimed before": {
			act: func(t *testing.T, s *pgstore.Store) {
				claimedBy(t, s, "first", true)
				claimedBy(t, s, "first", false)
			}, kept: "token = 'first'",
		},
		"a mark": {
			before: func(t *testing.T, s *pgstore.Store) { claimedBy(t, s, "first", true) },
			act:    func(t *testing.T, s *pgstore.Store) { marked(t, s, false) }, kept: "marked",
		},
		"a renewal": {
			before: func(t *testing.T, s *pgstore.Store) { claimedBy(t, s, "first", false) },
			act: func(t *testing.T, s *pgstore.Store) {
				s.Extend(t.Context(), []record.Extension{{ID: "r", Token: "first", Lease: 9 * time.Hour, Retention: 9 * time.Hour}}, func(_ int, err error) {
					if err != nil {
						t.Errorf("Extend: %v", err)
					}
				})
			}, kept: "lease_until > clock_timestamp() + interval '8 hours'",
		},
		"an answer": {
			before: func(t *testing.T, s *pgstore.Store) { claimedBy(t, s, "first", false) },
			act:    func(t *testing.T, s *pgstore.Store) { stored(t, s, false) }, kept: "state = 'd'",
		},
		"an answer without its claim": {
			act: func(t *testing.T, s *pgstore.Store) { stored(t, s, false) }, kept: "state = 'd'",
		},
		"a ticket": {
			before: func(t *testing.T, s *pgstore.Store) { claimedBy(t, s, "first", false) },
			act:    func(t *testing.T, s *pgstore.Store) { marked(t, s, true) }, kept: "ticket = 'first'",
		},
		"an interim answer": {
			before: func(t *testing.T, s *pgstore.Store) { claimedBy(t, s, "first", false); marked(t, s, true) },
			act:    func(t *testing.T, s *pgstore.Store) { stored(t, s, true) }, kept: "response IS NOT NULL",
		},
		"a claim with a ticket": {
			before: func(t *testing.T, s *pgstore.Store) { claimedBy(t, s, "first", false); marked(t, s, true) },
			act: func(t *testing.T, s *pgstore.Store) {
				rep, err := s.Claim(t.Context(), record.ClaimRequest{
					ID: "r", Token: "job", Ticket: "first", Lease: time.Hour, Retention: 2 * time.Hour, Deadline: soon(t), Late: func(record.ClaimReply, error) {},
				})
				if err != nil || rep.State != record.StateGranted {
					t.Fatalf("Claim with a ticket: %+v, %v; want it granted", rep, err)
				}
			}, kept: "token = 'job'",
		},
		"a resolution": {
			before: func(t *testing.T, s *pgstore.Store) {
				lapse(t, s, server)
				execute(t, server.Open(t), "UPDATE interlock_record SET marked = true")
			},
			act: func(t *testing.T, s *pgstore.Store) {
				if err := s.Resolve(t.Context(), record.ResolveRequest{ID: "r", Token: "found", Response: []byte("paid"), Retention: time.Hour, Deadline: soon(t)}); err != nil {
					t.Fatalf("Resolve: %v", err)
				}
			}, kept: "state = 'd'",
		},
		"an answer in the transaction of its handler": {
			act: func(t *testing.T, s *pgstore.Store) {
				newService(t, server.Open(t), s, func(w http.ResponseWriter, r *http.Request, tx *pgstore.Transaction) {
					pay(t, r, tx)
					execute(t, tx, "SET LOCAL synchronous_commit = off")
					say(w, "paid")
				}).want("a", http.StatusOK, "paid")
			}, kept: "state = 'd' AND (SELECT count(*) FROM ledger) = 1",
		},
		"a lock and a permit": {
			before: func(t *testing.T, s *pgstore.Store) { claimedBy(t, s, "first", false) },
			act: func(t *testing.T, s *pgstore.Store) {
				for key, kind := range map[string]driver.Kind{"lock": driver.Exclusive, "shared": driver.Shared} {
					rep, err := s.Acquire(t.Context(), driver.AcquireRequest{
						Key: key, Kind: kind, Owner: "o:1", TTL: time.Hour, Deadline: soon(t), Late: func(driver.Reply, error) {},
					})
					if err != nil || !rep.Granted {
						t.Fatalf("Acquire: %+v, %v; want it granted", rep, err)
					}
				}
			}, kept: "(SELECT count(*) FROM interlock_lock) = 2",
		},
	} {
		t.Run(name, func(t *testing.T) {
			db := server.Open(t)
			execute(t, db, "TRUNCATE interlock_record, interlock_lock, ledger")
			s := newStore(t, db)
			if c.before != nil {
				c.before(t, s)
			}
			execute(t, db, "CHECKPOINT") // all until now is on the disk
			c.act(t, s)
			server.Abort(t)
			server.Restart(t)
			if !read[bool](t, server.Open(t), "SELECT EXISTS (SELECT FROM interlock_record WHERE id <> '' AND "+c.kept+")") {
				t.Errorf("%s that was answered is gone after a crash of the server: want a record with %s", name, c.kept)
			}
		})
	}
}
