//go:build integration && unix

package postgres_test

import (
	"context"
	"database/sql"
	"fmt"
	"maps"
	"net/http"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/interlock-go/interlock/core/driver"
	"github.com/interlock-go/interlock/core/idempotency/record"
	"github.com/interlock-go/interlock/core/pgstore"
	"github.com/interlock-go/interlock/pgxstore"
	"github.com/interlock-go/interlock/trust/internal/pgtest"
)

// formerly is how many connections a pool has that were made before a failover.
const formerly = 3

// formerPools are pools of connections that only read, as to a server that is a standby;
// connections that are made from now on write.
var formerPools = map[string]func(t *testing.T, dsn string) *sql.DB{
	"database/sql": func(t *testing.T, dsn string) *sql.DB {
		config, err := pgx.ParseConfig(dsn)
		if err != nil {
			t.Fatal(err)
		}
		var over atomic.Bool
		db := stdlib.OpenDB(*config, stdlib.OptionBeforeConnect(onlyRead(&over)))
		t.Cleanup(func() { _ = db.Close() })
		db.SetMaxIdleConns(formerly)
		return filled(t, db, &over)
	},
	"pgxpool": func(t *testing.T, dsn string) *sql.DB {
		var over atomic.Bool
		pool := newPool(t, dsn, func(config *pgxpool.Config) {
			config.MaxConns = formerly
			config.BeforeConnect = onlyRead(&over)
		})
		db := pgxstore.DB(pool)
		t.Cleanup(func() { _ = db.Close() })
		return filled(t, db, &over)
	},
}

// onlyRead has connections only read until the failover has ended.
func onlyRead(over *atomic.Bool) func(context.Context, *pgx.ConnConfig) error {
	return func(_ context.Context, config *pgx.ConnConfig) error {
		if !over.Load() {
			config.RuntimeParams = maps.Clone(config.RuntimeParams)
			config.RuntimeParams["default_transaction_read_only"] = "on"
			config.RuntimeParams["application_name"] = config.RuntimeParams["search_path"] // for the count
		}
		return nil
	}
}

// filled makes the connections of a pool, and then has the failover over.
func filled(t *testing.T, db *sql.DB, over *atomic.Bool) *sql.DB {
	t.Helper()
	var all []*sql.Conn
	for range formerly {
		conn, err := db.Conn(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, conn)
	}
	over.Store(true)
	for _, conn := range all {
		if err := conn.Close(); err != nil {
			t.Fatal(err)
		}
	}
	return db
}

// TestConnectionsOfBeforeAFailoverAreGivenUp has each request of a store find nothing but
// connections that only read. The first may fail; later ones must not do so as long as the
// connections live.
func TestConnectionsOfBeforeAFailoverAreGivenUp(t *testing.T) {
	claim := func(t *testing.T, s *pgstore.Store, id string) error {
		t.Helper()
		rep, err := s.Claim(t.Context(), record.ClaimRequest{
			ID: id, Token: "t", Lease: time.Hour, Retention: time.Hour, Deadline: soon(t), Late: func(record.ClaimReply, error) {},
		})
		if err == nil && rep.State != record.StateGranted {
			err = fmt.Errorf("state %v", rep.State)
		}
		return err
	}
	for request, send := range map[string]func(t *testing.T, s *pgstore.Store) error{
		"Claim": func(t *testing.T, s *pgstore.Store) error { return claim(t, s, "new") },
		"Extend": func(t *testing.T, s *pgstore.Store) (err error) {
			s.Extend(t.Context(), []record.Extension{{ID: "there", Token: "t", Lease: time.Hour, Retention: time.Hour}},
				func(_ int, outcome error) { err = outcome })
			return err
		},
		"Forget": func(t *testing.T, s *pgstore.Store) error { return s.Forget(t.Context(), "there") },
		"Acquire": func(t *testing.T, s *pgstore.Store) error {
			_, err := s.Acquire(t.Context(), driver.AcquireRequest{Key: "k", Owner: "o", TTL: time.Hour})
			return err
		},
		"Migrate": func(t *testing.T, s *pgstore.Store) error { return s.Migrate(t.Context()) },
	} {
		for pool, open := range formerPools {
			t.Run(request+" on "+pool, func(t *testing.T) {
				t.Parallel()
				db, dsn := tables(t)
				if err := claim(t, newStore(t, db), "there"); err != nil {
					t.Fatal(err)
				}
				if request == "Migrate" { // in a database without tables
					dsn = pgtest.DSN(t)
				}
				s := newStore(t, open(t, dsn))
				eventually(t, "the request succeeds", func() bool { return send(t, s) == nil })
			})
		}
	}
}

// TestTheBackgroundGivesUpConnectionsOfBeforeAFailover is about statements for which no
// caller waits.
func TestTheBackgroundGivesUpConnectionsOfBeforeAFailover(t *testing.T) {
	for pool, open := range formerPools {
		t.Run("records on "+pool, func(t *testing.T) {
			t.Parallel()
			db, dsn := tables(t)
			execute(t, db, `INSERT INTO interlock_record (id, token, fingerprint, generation, state, marked, waits, lease_until, keep_until, sweep_hour)
				VALUES ('old', 't', '', 1, 'd', false, false, 'epoch', 'epoch', 0)`)
			newStore(t, open(t, dsn), pgstore.SweepEvery(10*time.Millisecond))
			eventually(t, "the record is deleted", func() bool { return read[int](t, db, "SELECT count(*) FROM interlock_record") == 0 })
		})
		t.Run("looks on "+pool, func(t *testing.T) {
			t.Parallel()
			db, dsn := tables(t)
			s := newStore(t, open(t, dsn))
			for _, owner := range []string{"o", "waits"} { // the second is listed, so the store looks for it
				eventually(t, "the request succeeds", func() bool {
					_, err := s.Acquire(t.Context(), driver.AcquireRequest{Key: "k", Owner: owner, Waiter: "w1", TTL: time.Hour})
					return err == nil
				})
			}
			stop := s.Calls("w1", func(driver.Call) {})
			defer stop()
			eventually(t, "looks use another connection", func() bool {
				return read[int](t, db, "SELECT count(*) FROM pg_stat_activity WHERE application_name = current_schema") < formerly
			})
		})
	}
}

// TestTransactionsOnConnectionsOfBeforeAFailover has a pool for the records that writes, and a
// pool for the transactions that does not.
func TestTransactionsOnConnectionsOfBeforeAFailover(t *testing.T) {
	for pool, open := range formerPools {
		t.Run(pool, func(t *testing.T) {
			t.Parallel()
			db, dsn := tables(t)
			s := newService(t, db, newStore(t, open(t, dsn), pgstore.Records(db)), func(w http.ResponseWriter, r *http.Request, tx *pgstore.Transaction) {
				_, err := tx.ExecContext(r.Context(), "INSERT INTO ledger VALUES ($1::text, 1)", r.Header.Get("Idempotency-Key"))
				if err != nil {
					http.Error(w, "not now", http.StatusServiceUnavailable)
					return
				}
				say(w, "paid")
			})
			eventually(t, "a payment is made", func() bool { return s.send("first").StatusCode == http.StatusOK })
			for i := range formerly {
				s.want(fmt.Sprint("next", i), http.StatusOK, "paid")
			}
			s.paid(1 + formerly)
		})
	}
}
