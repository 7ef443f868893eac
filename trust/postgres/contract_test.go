//go:build integration && unix

package postgres_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/interlock-go/interlock/core/driver"
	"github.com/interlock-go/interlock/core/driver/drivertest"
	"github.com/interlock-go/interlock/core/idempotency/record"
	"github.com/interlock-go/interlock/core/idempotency/record/recordtest"
	"github.com/interlock-go/interlock/core/pgstore"
	"github.com/interlock-go/interlock/internal/logtest"
	"github.com/interlock-go/interlock/trust/internal/pgtest"
)

// contracts runs all contracts on stores that open makes, in parallel with other tests.
func contracts(t *testing.T, open func(t *testing.T) *pgstore.Store) {
	t.Helper()
	drivertest.Run(t, func(t *testing.T) driver.Store { return open(t) })
	recordtest.Run(t, func(t *testing.T) record.Store { return open(t) })
}

func TestTheStoreKeepsItsContracts(t *testing.T) {
	t.Parallel()
	db, _ := tables(t)
	contracts(t, func(t *testing.T) *pgstore.Store { return newStore(t, db) })
}

// The store that hears calls takes and makes offers, too.
func TestTheStoreThatListensKeepsTheContractOfLocks(t *testing.T) {
	t.Parallel()
	db, dsn := tables(t)
	drivertest.Run(t, func(t *testing.T) driver.Store { return newStore(t, db, pgstore.Listen(listener{dsn})) })
}

func TestTheStoreOfPgxKeepsItsContracts(t *testing.T) {
	t.Parallel()
	_, dsn := tables(t)
	pool := newPool(t, dsn, func(config *pgxpool.Config) { config.MaxConns = 40 })
	contracts(t, func(t *testing.T) *pgstore.Store { return newPgxStore(t, pool).Store })
}

// A pooler in transaction mode gives each transaction another session, so drivers must not
// name prepared statements there.
func TestTheContractsNeedNoPreparedStatements(t *testing.T) {
	t.Parallel()
	_, dsn := tables(t)
	unprepared := connect(t, dsn+" default_query_exec_mode=simple_protocol")
	contracts(t, func(t *testing.T) *pgstore.Store { return newStore(t, unprepared) })
}

func TestTheContractOfLocksNeedsOneConnection(t *testing.T) {
	t.Parallel()
	_, dsn := tables(t)
	one := connect(t, dsn)
	one.SetMaxOpenConns(1)
	var log logtest.Log
	drivertest.Run(t, func(t *testing.T) driver.Store { return newStore(t, one, pgstore.Logger(log.Logger())) })
	if log.Count("the pool of connections for the locks is small") == 0 {
		t.Error("a pool of one connection is not worth a warning")
	}
}

// A statement of many requests must answer as a statement for each does. All parts of the contract
// share one store with a crowd.
func TestLocksKeepTheContractInACrowd(t *testing.T) {
	t.Parallel()
	db, _ := tables(t)
	s := newStore(t, db)
	ctx, cancel := context.WithCancel(t.Context())
	var crowd sync.WaitGroup
	for g := range 16 {
		crowd.Go(func() {
			for n := 0; ctx.Err() == nil; n++ {
				owner := fmt.Sprint("crowd:", g, ":", n)
				_, err := s.Acquire(context.Background(), driver.AcquireRequest{Key: fmt.Sprint("crowd", g), Owner: owner, TTL: time.Minute})
				if err == nil {
					_, err = s.Release(ctx, driver.ReleaseRequest{Key: fmt.Sprint("crowd", g), Owner: owner, Deadline: soon(t)})
				}
				if err != nil && ctx.Err() == nil {
					t.Errorf("the crowd: %v", err)
				}
			}
		})
	}
	drivertest.Run(t, func(*testing.T) driver.Store { return s })
	cancel()
	crowd.Wait()
}

// take asks for a lock, and fails the test on an error.
func take(tb testing.TB, s driver.Store, key, owner string) driver.Reply {
	tb.Helper()
	return takeAs(tb, s, driver.AcquireRequest{Key: key, Owner: owner})
}

func takeAs(tb testing.TB, s driver.Store, ask driver.AcquireRequest) driver.Reply {
	tb.Helper()
	if ask.TTL == 0 {
		ask.TTL = measured(tb).Holds()
	}
	rep, err := s.Acquire(tb.Context(), ask)
	if err != nil {
		tb.Fatalf("Acquire(%q) by %q: %v", ask.Key, ask.Owner, err)
	}
	return rep
}

// free releases a lock.
func free(tb testing.TB, s driver.Store, key, owner string) error {
	tb.Helper()
	_, err := s.Release(tb.Context(), driver.ReleaseRequest{Key: key, Owner: owner, TTL: measured(tb).Holds(), Deadline: soon(tb)})
	return err
}

// counting returns a store, and the count of its statements.
func counting(t *testing.T) (*pgstore.Store, *atomic.Int64) {
	t.Helper()
	_, dsn := tables(t)
	sent := new(atomic.Int64)
	db := (&wire{sending: func(text []byte) error {
		if isStatement(text) && !bytes.Contains(text, []byte("pg_relation_size")) { // once a second
			sent.Add(1)
		}
		return nil
	}}).through(t, dsn)
	return newStore(t, db), sent
}

func TestALockAndItsReleaseAreTwoStatements(t *testing.T) {
	t.Parallel()
	s, sent := counting(t)
	for range 2 {
		before := sent.Load()
		if rep := take(t, s, "k", "o"); !rep.Granted {
			t.Fatalf("%+v", rep)
		}
		if err := free(t, s, "k", "o"); err != nil {
			t.Fatal(err)
		}
		if n := sent.Load() - before; n != 2 {
			t.Errorf("a lock and its release took %d statements", n)
		}
	}
}

// Callers that had their answers together ask together again. If the first of them took a
// statement for its request alone, the others would wait for its answer.
//
//nolint:paralleltest // it sets the number of processors
func TestCallersThatHadTheirAnswersTogetherShareTheNextStatement(t *testing.T) {
	s, sent := counting(t)
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	const callers, pairs = 16, 20
	before := sent.Load()
	var all sync.WaitGroup
	for g := range callers {
		all.Go(func() {
			for i := range pairs {
				key, owner := fmt.Sprint("k", g), fmt.Sprint("o", i)
				if rep, err := s.Acquire(t.Context(), driver.AcquireRequest{Key: key, Owner: owner, TTL: time.Hour}); err != nil || !rep.Granted {
					t.Errorf("%+v, %v", rep, err)
				}
				if err := free(t, s, key, owner); err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
	if n := sent.Load() - before; n > callers*pairs/2 {
		t.Errorf("%d pairs of lock and release took %d statements; want at most %d", callers*pairs, n, callers*pairs/2)
	}
}

func TestLocksInATableOfAnotherName(t *testing.T) {
	t.Parallel()
	dsn := pgtest.DSN(t)
	db := connect(t, dsn)
	s := newStore(t, db, pgstore.Schema(schemaOf(dsn)), pgstore.Prefix("the_"), pgstore.SweepEvery(50*time.Millisecond))
	migrate(t, s)
	if rep := take(t, s, "k", "o"); !rep.Granted {
		t.Fatalf("%+v", rep)
	}
	eventually(t, "the sweep takes its lock there", func() bool { return read[int](t, db, "SELECT count(*) FROM the_lock") == 2 })
}

func TestLocksWithoutATableSaySo(t *testing.T) {
	t.Parallel()
	s := newStore(t, pgtest.Open(t))
	_, err := s.Acquire(t.Context(), driver.AcquireRequest{Key: "k", Owner: "o", TTL: time.Minute})
	if !errors.Is(err, driver.ErrUnavailable) || !strings.Contains(err.Error(), "the table of the locks is missing") {
		t.Errorf("%v", err)
	}
}

// A request with a text that PostgreSQL cannot have must not fail the others that share its
// statement.
func TestLocksThatPostgreSQLCannotHaveAreRefused(t *testing.T) {
	t.Parallel()
	db, _ := tables(t)
	s := newStore(t, db)
	for _, owner := range []string{"a\x00b", "\xff"} {
		_, err := s.Acquire(t.Context(), driver.AcquireRequest{Key: "k", Owner: owner, TTL: time.Minute})
		if !errors.Is(err, driver.ErrConfig) {
			t.Errorf("Acquire by %q: %v", owner, err)
		}
		if err := free(t, s, "k", owner); !errors.Is(err, driver.ErrConfig) {
			t.Errorf("Release by %q: %v", owner, err)
		}
	}
	for _, owner := range []string{`"`, `\`, `{}`, `,`, ` `, `NULL`, ``, `ключ`} {
		key := "of " + owner
		if rep := take(t, s, key, owner); !rep.Granted {
			t.Errorf("Acquire by %q: %+v", owner, rep)
		}
		if err := free(t, s, key, owner); err != nil {
			t.Errorf("Release by %q: %v", owner, err)
		}
	}
}

// A try that is refused, and has nothing to note, must not write: it would wait for the
// disk.
func TestARefusedTryWritesNothing(t *testing.T) {
	t.Parallel()
	db, _ := tables(t)
	s := newStore(t, db)
	waits := driver.AcquireRequest{Key: "k", Owner: "other", Waiter: "w1"}
	take(t, s, "k", "holder")
	takeAs(t, s, waits)
	const version = "SELECT xmin || ' ' || xmax || ' ' || ctid FROM interlock_lock WHERE key = 'k'"
	before := read[string](t, db, version)
	for range 3 {
		if rep := takeAs(t, s, waits); rep.Granted || !rep.Listed || rep.Holder != "holder" {
			t.Errorf("%+v", rep)
		}
		if rep := take(t, s, "k", "third"); rep.Granted || rep.Listed {
			t.Errorf("%+v", rep)
		}
	}
	s.Renew(t.Context(), []driver.Renewal{{Key: "k", Owner: "holder", Asked: true}}, func(_ int, contended bool, err error) {
		if !contended || err != nil {
			t.Errorf("contended %v, %v", contended, err)
		}
	})
	if after := read[string](t, db, version); after != before {
		t.Errorf("the row was written: %s, then %s", before, after)
	}
}

// TestTheContractsNeedNoDefaultsOfTheRole has defaults that a role or a database may have and that no
// promise may rest on.
func TestTheContractsNeedNoDefaultsOfTheRole(t *testing.T) {
	t.Parallel()
	_, dsn := tables(t)
	db := connect(t, dsn+" options='-c default_transaction_isolation=serializable -c synchronous_commit=off -c bytea_output=escape"+
		" -c DateStyle=SQL,DMY -c IntervalStyle=sql_standard -c TimeZone=America/Sao_Paulo -c extra_float_digits=-15"+
		" -c quote_all_identifiers=on -c array_nulls=off -c transform_null_equals=on -c plan_cache_mode=force_generic_plan'")
	contracts(t, func(t *testing.T) *pgstore.Store { return newStore(t, db) })
}
