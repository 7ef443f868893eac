//go:build integration && unix

package postgres_test

import (
	"context"
	"database/sql"
	sqldriver "database/sql/driver"
	"errors"
	"io"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/interlock-go/interlock/core/driver"
	"github.com/interlock-go/interlock/trust/internal/pgtest"
)

// skewed returns a database with tables, in which a test sets the clock.
func skewed(t *testing.T) (db *sql.DB, dsn string, set func(by time.Duration)) {
	t.Helper()
	dsn = pgtest.DSN(t) + ",pg_catalog" // after the schema
	db = connect(t, dsn)
	execute(t, db, "CREATE TABLE skew (by interval NOT NULL); INSERT INTO skew VALUES ('0')")
	execute(t, db, "CREATE FUNCTION clock_timestamp() RETURNS timestamptz VOLATILE LANGUAGE sql AS"+
		" 'SELECT pg_catalog.clock_timestamp() + by FROM skew'")
	migrate(t, newStore(t, db))
	return db, dsn, func(by time.Duration) {
		execute(t, db, "UPDATE skew SET by = $1 * interval '1 microsecond'", by.Microseconds())
	}
}

// A guess is for an instant of the server's clock. A clock that was set refuses it, and so a lease has its
// length by the clock that is.
func TestAGuessUnderAClockThatWasSetIsRefused(t *testing.T) {
	t.Parallel()
	for name, by := range map[string]time.Duration{"ahead": time.Hour, "back": -time.Hour} {
		db, dsn, set := skewed(t)
		s, other := newStore(t, db), newStore(t, connect(t, dsn))
		for key, before := range map[string]func(){
			"new": func() {}, "free": func() { pair(t, s, "free", "o:1", driver.AcquireRequest{}) },
		} {
			set(0)
			before()
			take(t, s, "any", "o:1") // the clock is known
			set(by)
			const lease = time.Minute
			rep := takeAs(t, s, driver.AcquireRequest{Key: key, Owner: "o:2", TTL: lease})
			left := time.Duration(read[int64](t, db, "SELECT (extract(epoch FROM lease_until - clock_timestamp()) * 1000000)::bigint"+
				" FROM interlock_lock WHERE key = $1", []byte(key))) * time.Microsecond
			if took := time.Since(rep.Sent); !rep.Granted || left > lease || left < lease-took {
				t.Errorf("the clock is set %s, the key is %s: %+v with %v left after at most %v; expected is a lease of %v", name, key, rep, left, took, lease)
			}
			if rep := take(t, other, key, "o:3"); rep.Granted {
				t.Errorf("the clock is set %s, the key is %s: the lock that is held is granted again: %+v", name, key, rep)
			}
			set(0)
			execute(t, db, "DELETE FROM interlock_lock")
		}
	}
}

// A lease that had not ended when the row was read is judged by the server's clock.
func TestALeaseEndsByTheServersClock(t *testing.T) {
	t.Parallel()
	db, _, set := skewed(t)
	s, other := newStore(t, db), newStore(t, db)
	takeAs(t, s, driver.AcquireRequest{Key: "k", Owner: "o:1", TTL: time.Hour})
	if rep := take(t, other, "k", "o:2"); rep.Granted {
		t.Fatalf("%+v; expected is a refusal", rep)
	}
	set(2 * time.Hour)
	if rep := take(t, other, "k", "o:2"); !rep.Granted {
		t.Errorf("two hours later: %+v; expected is a grant", rep)
	}
	s.Renew(t.Context(), []driver.Renewal{{Key: "k", Owner: "o:1", TTL: time.Hour, Asked: true}}, func(_ int, _ bool, err error) {
		if !errors.Is(err, driver.ErrNotOwner) {
			t.Errorf("the former holder renews: %v; expected is ErrNotOwner", err)
		}
	})
}

// postponed is a pooler that breaks the connection of one statement, once armed, and carries that out later.
type postponed struct {
	eachNew
	armed  *atomic.Bool
	until  chan struct{}
	passed chan error
}

func (c postponed) Connect(context.Context) (sqldriver.Conn, error) { return c, nil }

func (c postponed) QueryContext(ctx context.Context, query string, args []sqldriver.NamedValue) (sqldriver.Rows, error) {
	if !strings.Contains(query, "UPDATE interlock_lock") || !c.armed.CompareAndSwap(true, false) {
		return c.eachNew.QueryContext(ctx, query, args)
	}
	go func() {
		<-c.until
		rows, err := c.eachNew.QueryContext(context.Background(), query, args)
		if err == nil {
			for row := make([]sqldriver.Value, len(rows.Columns())); err == nil; {
				err = rows.Next(row)
			}
			err = errors.Join(rows.Close())
		}
		c.passed <- err
	}()
	return nil, io.ErrUnexpectedEOF
}

// A guess arrives late: its store has sent the request again, and others have used the lock since.
func TestALateGuessChangesNothing(t *testing.T) {
	t.Parallel()
	db, dsn := tables(t)
	config, err := pgx.ParseConfig(dsn)
	if err != nil {
		t.Fatal(err)
	}
	c := postponed{eachNew{stdlib.GetConnector(*config), func(string) {}}, new(atomic.Bool), make(chan struct{}), make(chan error, 1)}
	pooled := sql.OpenDB(c)
	t.Cleanup(func() { _ = pooled.Close() })
	s, other := newStore(t, pooled), newStore(t, db)
	pair(t, s, "k", "o:1", driver.AcquireRequest{})
	c.armed.Store(true)
	rep := takeAs(t, s, driver.AcquireRequest{Key: "k", Owner: "o:2"})
	if !rep.Granted || !rep.Ambiguous || c.armed.Load() {
		t.Fatalf("%+v; expected is an ambiguous grant", rep)
	}
	if err := free(t, other, "k", "o:2"); err != nil {
		t.Fatal(err)
	}
	take(t, other, "k", "o:3")
	close(c.until)
	if err := receive(t, "the late statement", c.passed); err != nil {
		t.Errorf("the late statement: %v", err)
	}
	if rep := take(t, other, "k", "o:4"); rep.Granted || rep.Holder != "o:3" {
		t.Errorf("after the late statement: %+v; expected is a refusal, as o:3 holds the lock", rep)
	}
}
