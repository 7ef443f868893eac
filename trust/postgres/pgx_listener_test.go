//go:build integration && unix

package postgres_test

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/interlock-go/interlock/internal/logtest"
	"github.com/interlock-go/interlock/pgxstore"
	"github.com/interlock-go/interlock/trust/internal/pgtest"
)

// heard is one call of a listener.
type heard struct {
	payload string
	state   bool // a call of state, with on
	on      bool
}

// ears collects the calls of a listener.
type ears struct {
	*testing.T
	log    logtest.Log
	calls  chan heard
	cancel context.CancelFunc
	ended  chan error
}

// errOver is why the contexts of listeners end.
var errOver = errors.New("the test has ended")

// listen listens on a channel until the test ends.
func listen(t *testing.T, pool *pgxpool.Pool, channel string, opts ...pgxstore.ListenerOption) *ears {
	t.Helper()
	e := &ears{T: t, calls: make(chan heard, 1000), ended: make(chan error, 1)}
	l, err := pgxstore.NewListener(pool, append([]pgxstore.ListenerOption{
		pgxstore.Logger(slog.New(slog.NewTextHandler(&e.log, nil))),
	}, opts...)...)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancelCause(context.Background())
	e.cancel = func() { cancel(errOver) }
	go func() {
		e.ended <- l.Listen(ctx, channel,
			func(payload string) { e.calls <- heard{payload: payload} },
			func(on bool) { e.calls <- heard{state: true, on: on} })
	}()
	t.Cleanup(func() {
		e.cancel()
		if err := receive(t, "Listen ends with its context", e.ended); !errors.Is(err, errOver) {
			t.Errorf("Listen returned %v; want the cause of its context", err)
		}
	})
	return e
}

// hears waits for calls, which must be these.
func (e *ears) hears(want ...heard) {
	e.Helper()
	for _, call := range want {
		if got := receive(e, "the listener tells something", e.calls); got != call {
			e.Fatalf("the listener tells %+v; want %+v", got, call)
		}
	}
}

// nothing checks that there was no other call.
func (e *ears) nothing() {
	e.Helper()
	if len(e.calls) > 0 {
		e.Fatalf("the listener tells %+v; want nothing", <-e.calls)
	}
}

var listening, polling = heard{state: true, on: true}, heard{state: true}

func named(name string) func(*pgxpool.Config) {
	return func(config *pgxpool.Config) { config.ConnConfig.RuntimeParams["application_name"] = name }
}

func TestAListenerHearsWhatIsNotifiedOnItsChannel(t *testing.T) {
	t.Parallel()
	dsn := pgtest.DSN(t)
	db := connect(t, dsn)
	// An application may have its own notifications, which do not come here.
	mine := make(chan string, 10)
	pool := newPool(t, dsn, named("hears"), func(config *pgxpool.Config) {
		config.ConnConfig.OnNotification = func(_ *pgconn.PgConn, n *pgconn.Notification) { mine <- n.Payload }
	})
	const channel = `Done "x"; DROP`
	e := listen(t, pool, channel)
	e.hears(listening)
	for _, payload := range []string{"a", "", "ü'\"\\", strings.Repeat("x", 7999)} {
		execute(t, db, "SELECT pg_notify($1, $2)", channel, payload)
		e.hears(heard{payload: payload})
	}
	execute(t, db, "SELECT pg_notify($1, 'other case')", strings.ToLower(channel))
	execute(t, db, "SELECT pg_notify($1, 'last')", channel)
	e.hears(heard{payload: "last"})
	if n := read[int](t, db, "SELECT count(*)"+sessions, "hears"); n != 1 {
		t.Errorf("%d connections of the application listen; want 1", n)
	}
	if acquired := pool.Stat().AcquiredConns(); acquired != 0 {
		t.Errorf("%d connections of the pool are in use", acquired)
	}
	e.cancel()
	eventually(t, "the connection is closed", func() bool { return read[int](t, db, "SELECT count(*)"+sessions, "hears") == 0 })
	if len(mine) > 0 {
		t.Errorf("the application's handler heard %q", <-mine)
	}
}

func TestAListenerWhoseConnectionWasEndedSaysToLookAgain(t *testing.T) {
	t.Parallel()
	dsn := pgtest.DSN(t)
	db := connect(t, dsn)
	e := listen(t, newPool(t, dsn, named("ended")), "ended")
	e.hears(listening)
	for range 3 {
		if n := read[int](t, db, "SELECT count(pg_terminate_backend(pid))"+sessions, "ended"); n != 1 {
			t.Fatalf("%d connections ended; want 1", n)
		}
		e.hears(polling, listening)
		execute(t, db, "SELECT pg_notify('ended', 'again')")
		e.hears(heard{payload: "again"})
	}
	eventually(t, "the log says for the third time that it listens again", func() bool { return e.log.Count("level=INFO") == 3 })
	if n := e.log.Count("level=WARN"); n != 3 {
		t.Errorf("%d warnings; want one for each connection that was lost", n)
	}
}

func TestAListenerNeedsNoConnectionOfABusyPool(t *testing.T) {
	t.Parallel()
	pool := newPool(t, pgtest.DSN(t), named("busy"), func(config *pgxpool.Config) { config.MaxConns = 1 })
	conn, err := pool.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Release()
	e := listen(t, pool, "busy", pgxstore.CheckEvery(10*time.Millisecond))
	e.hears(listening)
	// A check waits for the pool first.
	eventually(t, "there were checks", func() bool { return pool.Stat().CanceledAcquireCount() >= 2 })
	e.nothing()
	if _, err := conn.Exec(t.Context(), "NOTIFY busy, 'a'"); err != nil {
		t.Fatal(err)
	}
	e.hears(heard{payload: "a"})
}

func TestAListenerNoticesThatItsConnectionIsDeadWithoutASign(t *testing.T) {
	t.Parallel()
	dsn := pgtest.DSN(t)
	w := new(wire)
	pool := newPool(t, dsn, func(config *pgxpool.Config) { config.ConnConfig.DialFunc = w.dial })
	e := listen(t, pool, "dead", pgxstore.CheckEvery(10*time.Millisecond))
	e.hears(listening)
	w.freeze()
	e.hears(polling, listening)
	execute(t, connect(t, dsn), "SELECT pg_notify('dead', 'a')")
	e.hears(heard{payload: "a"})
}

func TestAListenerWithoutAServerSaysSoOnceAndFindsIt(t *testing.T) {
	t.Parallel()
	var down atomic.Bool
	var tries atomic.Int64
	down.Store(true)
	pool := newPool(t, pgtest.DSN(t), func(config *pgxpool.Config) {
		config.BeforeConnect = func(context.Context, *pgx.ConnConfig) error {
			tries.Add(1)
			if down.Load() {
				return errors.New("no server")
			}
			return nil
		}
	})
	e := listen(t, pool, "down")
	e.hears(polling)
	eventually(t, "it tries again", func() bool { return tries.Load() >= 3 })
	e.nothing() // it is notified once
	down.Store(false)
	e.hears(listening)
	eventually(t, "the log says that it listens again", func() bool { return e.log.Count("listening for notifications again") == 1 })
	if warnings, all := e.log.Count("no server"), e.log.Count("level="); warnings != 1 || all != 2 {
		t.Errorf("%d warnings in %d lines; want 1 in 2", warnings, all)
	}
}
