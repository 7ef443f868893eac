//go:build integration && unix

package postgres_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/interlock-go/interlock/core/driver"
	"github.com/interlock-go/interlock/core/driver/drivertest"
	"github.com/interlock-go/interlock/trust/internal/pgtest"
)

func TestLocksKeepTheContract(t *testing.T) {
	db := lockTable(t)
	drivertest.Run(t, func(t *testing.T) driver.Store { return newLocks(t, db, slowly) })
}

// Statements of many requests must answer as those of one do. All parts of the contract
// share one store with a crowd.
func TestLocksKeepTheContractInACrowd(t *testing.T) {
	s := newLocks(t, lockTable(t), slowly)
	ctx, cancel := context.WithCancel(t.Context())
	var crowd sync.WaitGroup
	for g := range 32 {
		crowd.Go(func() {
			for n := 0; ctx.Err() == nil; n++ {
				owner := fmt.Sprint("crowd:", g, ":", n)
				_, err := s.Acquire(context.Background(), driver.AcquireRequest{Key: fmt.Sprint("crowd", g), Owner: owner, TTL: time.Minute})
				if err == nil {
					_, err = s.Release(ctx, driver.ReleaseRequest{Key: fmt.Sprint("crowd", g), Owner: owner, Deadline: time.Now().Add(patience)})
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

func TestLocksKeepTheContractWithAListener(t *testing.T) {
	db := lockTable(t)
	hears := listener{dsnOf(t, db)}
	drivertest.Run(t, func(t *testing.T) driver.Store {
		return newLocks(t, db, slowly, func(c *config) { c.Listen = hears })
	})
}

// A pooler in transaction mode gives each transaction another session, so drivers must not
// name prepared statements there.
func TestLocksNeedNoPreparedStatements(t *testing.T) {
	db := lockTable(t)
	for _, mode := range []string{"exec", "simple_protocol"} {
		t.Run(mode, func(t *testing.T) {
			unprepared := pool(t, dsnOf(t, db)+" default_query_exec_mode="+mode)
			drivertest.Run(t, func(t *testing.T) driver.Store { return newLocks(t, unprepared, slowly) })
		})
	}
}

func TestLocksNeedOneConnection(t *testing.T) {
	db := lockTable(t)
	one := pool(t, dsnOf(t, db))
	one.SetMaxOpenConns(1)
	var log said
	drivertest.Run(t, func(t *testing.T) driver.Store {
		return newLocks(t, one, slowly, func(c *config) { c.Log = log.logger() })
	})
	if log.count("the pool of connections for the locks is small") == 0 {
		t.Error("a pool of one connection is not worth a warning")
	}
}

func TestLocksInATableOfAnotherName(t *testing.T) {
	db := pgtest.Open(t)
	s := newLocks(t, db, func(c *config) { c.Schema, c.Prefix, c.Sweep = schemaOf(t, db), "the_", 50*time.Millisecond })
	makeLocks(t, s)
	rep, err := s.Acquire(t.Context(), driver.AcquireRequest{Key: "k", Owner: "o", TTL: time.Minute})
	if err != nil || !rep.Granted {
		t.Fatalf("%+v, %v", rep, err)
	}
	rows := 0
	eventually(t, "the sweep takes its lock there", func() bool {
		if err := db.QueryRowContext(t.Context(), "SELECT count(*) FROM the_lock").Scan(&rows); err != nil {
			t.Fatal(err)
		}
		return rows == 2
	})
}

func TestLocksWithoutATableSaySo(t *testing.T) {
	s := newLocks(t, pgtest.Open(t))
	_, err := s.Acquire(t.Context(), driver.AcquireRequest{Key: "k", Owner: "o", TTL: time.Minute})
	if !errors.Is(err, driver.ErrUnavailable) || !containsText(err, "the table of the locks is missing") {
		t.Errorf("%v", err)
	}
}

func TestLocksAreExclusive(t *testing.T) {
	s := newLocks(t, lockTable(t))
	for _, kind := range []driver.Kind{driver.Shared, driver.Permit, 77} {
		_, err := s.Acquire(t.Context(), driver.AcquireRequest{Key: "k", Owner: "o", Kind: kind, AtMost: 3, TTL: time.Minute})
		if !errors.Is(err, driver.ErrConfig) || !containsText(err, "exclusive locks only") {
			t.Errorf("kind %d: %v", kind, err)
		}
	}
}

// One request with a text that PostgreSQL cannot have must not fail those that share its
// statement.
func TestLocksRefuseTextsThatPostgreSQLCannotHave(t *testing.T) {
	s := newLocks(t, lockTable(t))
	for _, owner := range []string{"a\x00b", "\xff"} {
		_, err := s.Acquire(t.Context(), driver.AcquireRequest{Key: "k", Owner: owner, TTL: time.Minute})
		if !errors.Is(err, driver.ErrConfig) {
			t.Errorf("Acquire by %q: %v", owner, err)
		}
		if _, err := s.Release(t.Context(), driver.ReleaseRequest{Key: "k", Owner: owner}); !errors.Is(err, driver.ErrConfig) {
			t.Errorf("Release by %q: %v", owner, err)
		}
	}
	for _, owner := range []string{`"`, `\`, `{}`, `,`, ` `, `NULL`, ``, `ключ`} {
		rep, err := s.Acquire(t.Context(), driver.AcquireRequest{Key: "of " + owner, Owner: owner, TTL: time.Minute})
		if err != nil || !rep.Granted {
			t.Errorf("Acquire by %q: %+v, %v", owner, rep, err)
		}
		if _, err := s.Release(t.Context(), driver.ReleaseRequest{Key: "of " + owner, Owner: owner}); err != nil {
			t.Errorf("Release by %q: %v", owner, err)
		}
	}
}
