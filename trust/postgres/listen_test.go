//go:build integration && unix

package postgres_test

import (
	"context"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/interlock-go/interlock/core/driver"
	"github.com/interlock-go/interlock/core/idempotency/record"
	"github.com/interlock-go/interlock/core/pgstore"
	"github.com/interlock-go/interlock/internal/logtest"
	"github.com/interlock-go/interlock/pgxstore"
)

// listener receives notifications over its own connection. A service that does not use
// package pgxstore can write it.
type listener struct{ dsn string }

func (l listener) Listen(ctx context.Context, channel string, hear func(string), state func(bool)) error {
	conn, err := pgx.Connect(ctx, l.dsn)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()
	// The end of ctx must not interrupt the statement: pgx would have the server cancel it,
	// and PgBouncer before 1.21 can end itself if a notification comes meanwhile
	// (github.com/pgbouncer/pgbouncer, issue 822 and pull request 927).
	if _, err := conn.Exec(context.WithoutCancel(ctx), "LISTEN "+channel); err != nil {
		return err
	}
	state(true)
	for {
		n, err := conn.WaitForNotification(ctx)
		if err != nil {
			return err
		}
		hear(n.Payload)
	}
}

// deaf listens, and receives nothing, as behind a pooler in transaction mode.
type deaf struct{}

func (deaf) Listen(ctx context.Context, _ string, _ func(string), state func(bool)) error {
	state(true)
	<-ctx.Done()
	return ctx.Err()
}

// A process that waits for locks and for records has one connection that listens for both,
// also after it broke.
func TestLocksAndRecordsListenOnOneConnection(t *testing.T) {
	for name, listens := range map[string]func(t *testing.T, dsn string) pgstore.Listener{
		"one's own": func(_ *testing.T, dsn string) pgstore.Listener { return listener{dsn} },
		"pgxstore's": func(t *testing.T, dsn string) pgstore.Listener {
			l, err := pgxstore.NewListener(newPool(t, dsn), pgxstore.Logger(slog.New(slog.DiscardHandler)))
			if err != nil {
				t.Fatal(err)
			}
			return l
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, dsn := tables(t)
			application := "ears_" + schemaOf(dsn)
			listensFor(t, dsn, application, pgstore.Listen(listens(t, dsn+" application_name="+application)))
		})
	}
}

// sessions is a condition on the connections that listen, of one application.
const sessions = " FROM pg_stat_activity WHERE application_name = $1 AND query ILIKE 'LISTEN%'"

func listensFor(t *testing.T, dsn, name string, with pgstore.Option) {
	t.Helper()
	db := connect(t, dsn)
	here, there := newStore(t, db, with), newStore(t, connect(t, dsn), with)
	released, done := make(chan driver.Call, 100), make(chan struct{}, 100)
	defer here.Calls("w1", func(c driver.Call) {
		if c.What == driver.Turn {
			released <- c
		}
	})()
	defer here.Await("id", time.Now(), func() { done <- struct{}{} })()
	<-done // by Await itself

	holds := measured(t).Holds()
	claim := func(token string) record.ClaimReply {
		t.Helper()
		rep, err := here.Claim(t.Context(), record.ClaimRequest{
			ID: "id", Token: token, Lease: holds, Retention: 2 * holds, Waits: true,
			Deadline: soon(t), Late: func(record.ClaimReply, error) {},
		})
		if err != nil {
			t.Fatal(err)
		}
		return rep
	}
	listeners := func() string {
		t.Helper()
		return read[string](t, db, "SELECT coalesce(string_agg(pid::text, ' '), '')"+sessions, name)
	}
	for _, round := range []string{"first", "after the connection was cut"} {
		if rep := claim("first"); rep.State != record.StateGranted {
			t.Fatalf("%s: %+v", round, rep)
		}
		eventually(t, "a duplicate is listed, since the store listens", func() bool {
			rep := claim("second")
			return rep.State == record.StateInFlight && rep.Listed
		})
		last := listeners()
		if len(strings.Fields(last)) != 1 {
			t.Errorf("%s: the connections %q listen; want one", round, last)
		}
		for len(done) > 0 {
			<-done
		}
		if err := there.Abandon(t.Context(), record.AbandonRequest{ID: "id", Token: "first", Deadline: soon(t)}); err != nil {
			t.Fatal(err)
		}
		receive(t, "the end of the claim is heard", done)

		take(t, there, "k", "o")
		takeAs(t, here, driver.AcquireRequest{Key: "k", Owner: "waits", Waiter: "w1"})
		if err := free(t, there, "k", "o"); err != nil {
			t.Fatal(err)
		}
		receive(t, "the release is heard", released)
		execute(t, db, "SELECT pg_terminate_backend(pid)"+sessions, name)
		eventually(t, "there is another connection", func() bool {
			now := listeners()
			return now != "" && !strings.Contains(now, last)
		})
	}
}

// A process receives the notifications of processes on its tables, however they name the
// schema, and of no process with tables of the same name elsewhere.
func TestProcessesHearEachOtherByTheirTables(t *testing.T) {
	t.Parallel()
	hears := func(dsn string, opts ...pgstore.Option) *pgstore.Store {
		return newStore(t, connect(t, dsn), append(opts, pgstore.Listen(listener{dsn}))...)
	}
	_, dsn := tables(t)
	_, other := tables(t)
	schema := schemaOf(dsn)
	here, elsewhere := hears(dsn), hears(other)
	there := hears(strings.Replace(dsn, "search_path="+schema, "search_path=public", 1), pgstore.Schema(schema))

	hear := func(s, by *pgstore.Store, id string) {
		t.Helper()
		told := awaited(t, s, id)
		if err := giveUp(t, by, id); err != nil {
			t.Fatal(err)
		}
		receive(t, "what is announced is heard", told)
	}
	hear(here, there, "a")
	foreign := make(chan struct{}, 100)
	defer here.Await("b", soon(t), func() { foreign <- struct{}{} })()
	<-foreign // by Await itself
	hear(elsewhere, elsewhere, "b")
	hear(here, there, "c") // announced later, and received
	if len(foreign) > 0 {
		t.Error("a process hears what is announced about the tables of another schema")
	}
}

func TestADeafListenerIsNoticed(t *testing.T) {
	t.Parallel()
	db, _ := tables(t)
	var log logtest.Log
	s := newStore(t, db, pgstore.Listen(deaf{}), pgstore.Logger(log.Logger()))
	defer s.Calls("w1", func(driver.Call) {})()
	for _, owner := range []string{"o", "waits"} {
		takeAs(t, s, driver.AcquireRequest{Key: "k", Owner: owner, Waiter: "w1"})
	}
	eventually(t, "the log says that nothing is heard", func() bool { return log.Count("announcements are not heard") == 1 })
}
