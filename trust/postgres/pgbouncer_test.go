//go:build long && unix

package postgres_test

import (
	"database/sql"
	"fmt"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/driver"
	"github.com/interlock-go/interlock/core/driver/drivertest"
	"github.com/interlock-go/interlock/core/pgstore"
	"github.com/interlock-go/interlock/internal/logtest"
	"github.com/interlock-go/interlock/pgxstore"
	"github.com/interlock-go/interlock/trust/internal/pgbouncertest"
	"github.com/interlock-go/interlock/trust/internal/pgtest"
)

// pooler starts PgBouncer in front of a server, and returns how to connect through it.
func pooler(t *testing.T, direct, mode string) (dsn string) {
	t.Helper()
	return pgbouncertest.Start(t, direct, mode, "default_pool_size = 4")
}

func TestLocksKeepTheContractBehindAPooler(t *testing.T) {
	_, direct := tables(t)
	dsn, schema := pooler(t, direct, pgbouncertest.Transaction), pgstore.Schema(schemaOf(direct))
	through := connect(t, dsn)
	for name, opts := range map[string][]pgstore.Option{
		"looking": {schema},
		// LISTEN succeeds behind a pooler, and delivers nothing.
		"listening": {schema, pgstore.Listen(listener{dsn})},
	} {
		t.Run(name, func(t *testing.T) {
			drivertest.Run(t, func(t *testing.T) driver.Store { return newStore(t, through, opts...) })
		})
	}
}

func TestAWaitEndsWithTheReleaseBehindAPooler(t *testing.T) {
	t.Parallel()
	db, direct := tables(t)
	dsn, schema := pooler(t, direct, pgbouncertest.Transaction), pgstore.Schema(schemaOf(direct))
	var log logtest.Log
	holder := newLocker(t, newStore(t, connect(t, dsn), schema), core.Watchdog(measured(t).Holds()))
	other := newLocker(t, newStore(t, connect(t, dsn), schema, pgstore.Listen(listener{dsn}), pgstore.Logger(log.Logger())))
	aWaitEnds(t, db, []*core.Locker{holder, other})
	if n := log.Count("announcements are not heard"); n > 1 {
		t.Errorf("the log says %d times that nothing is heard", n)
	}
}

func TestAListenerBehindAPoolOfTransactionsSaysThatItHearsNothing(t *testing.T) {
	for _, mode := range []string{pgbouncertest.Transaction, pgbouncertest.Statement} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			direct := pgtest.DSN(t)
			through := pooler(t, direct, mode)
			e := listen(t, newPool(t, through), mode)
			e.hears(polling)
			eventually(t, "the log says so", func() bool { return e.log.Count("PgBouncer") > 0 })
			// With its own pool it receives notifications sent through PgBouncer.
			own := listen(t, newPool(t, direct, func(config *pgxpool.Config) { config.MaxConns = 1 }), mode)
			own.hears(listening)
			execute(t, connect(t, through), "SELECT pg_notify($1, 'through')", mode)
			own.hears(heard{payload: "through"})
			e.nothing()
			if n := e.log.Count("level="); n != 1 {
				t.Errorf("%d lines in the log; want 1", n)
			}
		})
	}
}

func TestAListenerBehindAPoolOfSessionsHears(t *testing.T) {
	t.Parallel()
	dsn := pooler(t, pgtest.DSN(t), pgbouncertest.Session)
	pool := newPool(t, dsn)
	e := listen(t, pool, "session", pgxstore.CheckEvery(10*measured(t).RoundTrip))
	e.hears(listening)
	eventually(t, "it has checked that it hears", func() bool { return pool.Stat().AcquireCount() >= 5 })
	execute(t, connect(t, dsn), "SELECT pg_notify('session', 'a')")
	e.hears(heard{payload: "a"})
}

// TestBehindPgBouncer has two processes of one service behind a pooler in transaction mode.
// There LISTEN delivers nothing, and duplicates look by themselves.
func TestBehindPgBouncer(t *testing.T) {
	t.Parallel()
	dsn := pooler(t, pgtest.DSN(t), pgbouncertest.Transaction)
	var processes []*service
	for range 2 {
		processes = append(processes, newPgxService(t, newPool(t, dsn), dsn))
	}
	var work sync.WaitGroup
	for n := range 8 {
		work.Go(func() {
			for i := range 15 {
				// Each key goes to both processes, more than once.
				p, key := processes[(n+i)%2], fmt.Sprint("k", n/4*15+i)
				eventually(t, "the payment is answered", func() bool { return p.send(key).StatusCode == 200 })
			}
		})
	}
	work.Wait()
	processes[0].paid(30)
	if keys := read[int](t, processes[0].db, "SELECT count(DISTINCT payment) FROM ledger"); keys != 30 {
		t.Errorf("payments of %d keys; want 30", keys)
	}
}

// A pooler keeps its own connections to a server that became a standby, also when its clients
// close theirs.
func TestConnectionsOfAPoolerOfBeforeAFailoverAreGivenUp(t *testing.T) {
	t.Parallel()
	db, direct := tables(t)
	dsn := pooler(t, direct, pgbouncertest.Transaction)
	config, err := pgx.ParseConfig(dsn)
	if err != nil {
		t.Fatal(err)
	}
	execute(t, db, "ALTER ROLE "+config.User+" SET default_transaction_read_only = on")
	// The pooler has connected once, to see whether the server is there.
	execute(t, db, "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity WHERE usename = '"+config.User+"'")
	through := connect(t, dsn)
	eventually(t, "the pooler connects anew", func() bool {
		var mode string
		return through.QueryRowContext(t.Context(), "SELECT current_setting('transaction_read_only')").Scan(&mode) == nil && mode == "on"
	})
	var all []*sql.Tx
	for range formerly { // a connection to the server for each
		tx, err := through.BeginTx(t.Context(), nil)
		if err != nil {
			t.Fatal(err)
		}
		if mode := read[string](t, tx, "SELECT current_setting('transaction_read_only')"); mode != "on" {
			t.Fatalf("transaction_read_only is %s", mode)
		}
		all = append(all, tx)
	}
	for _, tx := range all {
		if err := tx.Rollback(); err != nil {
			t.Fatal(err)
		}
	}
	execute(t, db, "ALTER ROLE "+config.User+" RESET default_transaction_read_only")
	s := newStore(t, through)
	for _, key := range []string{"a", "b"} {
		eventually(t, "a lock is granted", func() bool {
			rep, err := s.Acquire(t.Context(), driver.AcquireRequest{Key: key, Owner: "o", TTL: measured(t).Holds()})
			return err == nil && rep.Granted
		})
	}
}
