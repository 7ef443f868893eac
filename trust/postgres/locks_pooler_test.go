//go:build long && unix

package postgres_test

import (
	"database/sql"
	"testing"
	"time"

	"github.com/interlock-go/interlock/core/driver"
	"github.com/interlock-go/interlock/core/driver/drivertest"
	"github.com/interlock-go/interlock/trust/internal/pgbouncertest"
)

// pooler starts PgBouncer in transaction mode in front of a server, and returns how to
// connect through it.
func pooler(t *testing.T, db *sql.DB) (dsn string) {
	t.Helper()
	return pgbouncertest.Start(t, dsnOf(t, db), pgbouncertest.Transaction, "default_pool_size = 4")
}

func TestLocksKeepTheContractBehindAPooler(t *testing.T) {
	db := lockTable(t)
	dsn, schema := pooler(t, db), schemaOf(t, db)
	through := pool(t, dsn)
	for name, change := range map[string]func(*config){
		"looking": func(c *config) { c.Schema = schema },
		// LISTEN succeeds behind a pooler, and hears nothing.
		"listening": func(c *config) { c.Schema, c.Listen = schema, listener{dsn} },
	} {
		t.Run(name, func(t *testing.T) {
			drivertest.Run(t, func(t *testing.T) driver.Store { return newLocks(t, through, slowly, change) })
		})
	}
}

func TestAWaitEndsSoonBehindAPooler(t *testing.T) {
	db := lockTable(t)
	dsn, schema := pooler(t, db), schemaOf(t, db)
	var log said
	holder := newLocker(t, newLocks(t, pool(t, dsn), slowly, func(c *config) { c.Schema = schema }))
	other := newLocker(t, newLocks(t, pool(t, dsn), slowly, func(c *config) {
		c.Schema, c.Listen, c.Log = schema, listener{dsn}, log.logger()
	}))
	lease, err := holder.Lock(t.Context(), "k")
	if err != nil {
		t.Fatal(err)
	}
	got := make(chan time.Time)
	go func() {
		lease, err := other.Lock(t.Context(), "k")
		if err != nil {
			t.Errorf("Lock: %v", err)
		} else if err := lease.Release(t.Context()); err != nil {
			t.Errorf("Release: %v", err)
		}
		got <- time.Now()
	}()
	eventually(t, "the log says that nothing is heard", func() bool { return log.count("announcements are not heard") == 1 })
	released := time.Now()
	if err := lease.Release(t.Context()); err != nil {
		t.Fatal(err)
	}
	took := (<-got).Sub(released)
	t.Logf("the wait ended after %v", took)
	if took > 10*time.Second { // by its end alone the lease takes 30 s
		t.Errorf("the wait ended %v after the release", took)
	}
}
