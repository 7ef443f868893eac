//go:build integration && unix

package postgres_test

import (
	"context"
	"database/sql"
	sqldriver "database/sql/driver"
	"errors"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/interlock-go/interlock/core/driver"
	"github.com/interlock-go/interlock/trust/internal/pgtest"
)

// eachNew is a connection as with a pooler in between: each statement has a connection of the server of its own,
// so that a statement is carried out after a crash of the server that was decided before.
type eachNew struct {
	sqldriver.Connector
	sending func(statement string)
}

func (c eachNew) Connect(context.Context) (sqldriver.Conn, error) { return c, nil }
func (eachNew) Close() error                                      { return nil }
func (eachNew) Begin() (sqldriver.Tx, error)                      { return nil, errors.ErrUnsupported }

func (eachNew) Prepare(string) (sqldriver.Stmt, error) { return nil, errors.ErrUnsupported }

func (c eachNew) QueryContext(ctx context.Context, query string, args []sqldriver.NamedValue) (sqldriver.Rows, error) {
	c.sending(query)
	conn, err := c.Connector.Connect(ctx)
	if err != nil {
		return nil, err
	}
	rows, err := conn.(sqldriver.QueryerContext).QueryContext(ctx, query, args)
	if err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	return closing{rows, conn}, nil
}

// closing are the rows of a connection, which ends with them.
type closing struct {
	sqldriver.Rows
	conn sqldriver.Conn
}

func (r closing) Close() error { return errors.Join(r.Rows.Close(), r.conn.Close()) }

// After a crash the server gives out again the numbers of transactions that were not on the disk. A permit
// is granted on a row whose last change, a release, the crash undoes; the change after the crash has the
// number of that release.
func TestAGrantThatWasDecidedBeforeACrashOverwritesNoOther(t *testing.T) {
	t.Parallel()
	server := pgtest.Start(t, "wal_writer_delay=10000", "autovacuum=off")
	db := server.Open(t)
	migrate(t, newStore(t, db))
	config, err := pgx.ParseConfig(server.DSN())
	if err != nil {
		t.Fatal(err)
	}
	decided, restarted := make(chan struct{}), make(chan struct{})
	first := true
	pooled := sql.OpenDB(eachNew{stdlib.GetConnector(*config), func(statement string) {
		if strings.Contains(statement, "UPDATE interlock_lock") && first {
			first = false
			close(decided)
			<-restarted
		}
	}})
	t.Cleanup(func() { _ = pooled.Close() })
	permit := func(owner string) driver.AcquireRequest {
		return driver.AcquireRequest{
			Key: "k", Owner: owner, Kind: driver.Permit, AtMost: 3, TTL: measured(t).Holds(), Deadline: soon(t), Late: func(driver.Reply, error) {},
		}
	}
	s := newStore(t, db)
	for _, owner := range []string{"stays", "leaves"} {
		if rep := takeAs(t, s, permit(owner)); !rep.Granted {
			t.Fatalf("%+v; want it granted", rep)
		}
	}
	if _, err := s.Release(t.Context(), driver.ReleaseRequest{
		Key: "k", Owner: "leaves", Kind: driver.Permit, AtMost: 3, TTL: measured(t).Holds(), Deadline: soon(t),
	}); err != nil {
		t.Fatal(err)
	}
	const writer = "SELECT xmin::text::bigint FROM interlock_lock WHERE key = 'k'"
	release := read[int64](t, db, writer)
	granted := make(chan driver.Reply, 1)
	asking := newStore(t, pooled)
	ask := permit("pooled")
	go func() {
		rep, err := asking.Acquire(t.Context(), ask)
		if err != nil {
			t.Errorf("Acquire through a pooler: %v", err)
		}
		granted <- rep
	}()
	receive(t, "the permit is decided", decided)

	server.Abort(t)
	server.Restart(t)
	db = server.Open(t)
	next := func() int64 {
		return read[int64](t, db, "SELECT pg_snapshot_xmax(pg_current_snapshot())::text::bigint")
	}
	for next() < release {
		execute(t, db, "SELECT pg_current_xact_id()")
	}
	if n := next(); n != release {
		t.Fatalf("the next transaction has the number %d; the test needs the number of the release, %d, once more", n, release)
	}
	s = newStore(t, db)
	if rep := takeAs(t, s, permit("later")); !rep.Granted {
		t.Fatalf("a permit after the crash: %+v; want it granted", rep)
	}
	if n := read[int64](t, db, writer); n != release {
		t.Fatalf("the row was written by %d; the test needs %d", n, release)
	}
	close(restarted)
	if rep := receive(t, "the permit is granted or refused", granted); rep.Granted {
		t.Errorf("a fourth permit of three is granted: %+v", rep)
	}
	s.Renew(t.Context(), []driver.Renewal{{Key: "k", Owner: "later", Kind: driver.Permit, TTL: measured(t).Holds(), Asked: true}},
		func(_ int, _ bool, err error) {
			if err != nil {
				t.Errorf("the holder since the crash is told %v; want that it has its permit", err)
			}
		})
}
