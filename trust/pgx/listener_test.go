//go:build integration && unix

package pgx_test

import (
	"context"
	"errors"
	"net"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/pgxstore"
	"github.com/interlock-go/interlock/trust/internal/pgtest"
)

// sessions is a condition on the connections that listen, of one application.
const sessions = " FROM pg_stat_activity WHERE application_name = $1 AND query ILIKE 'LISTEN%'"

func named(name string) func(*pgxpool.Config) {
	return func(config *pgxpool.Config) { config.ConnConfig.RuntimeParams["application_name"] = name }
}

func TestAListenerHearsWhatIsNotifiedOnItsChannel(t *testing.T) {
	dsn := pgtest.DSN(t)
	// An application may have notifications of its own, which do not come here.
	mine := make(chan string, 10)
	pool := newPool(t, dsn, named("hears"), func(config *pgxpool.Config) {
		config.ConnConfig.OnNotification = func(_ *pgconn.PgConn, n *pgconn.Notification) { mine <- n.Payload }
	})
	const channel = `Done "x"; DROP`
	e := listen(t, pool, channel)
	e.hears(listening)
	for _, payload := range []string{"a", "", "ü'\"\\", strings.Repeat("x", 7999)} {
		exec(t, pool, "SELECT pg_notify($1, $2)", channel, payload)
		e.hears(heard{payload: payload})
	}
	exec(t, pool, "SELECT pg_notify($1, 'other case')", strings.ToLower(channel))
	exec(t, pool, "SELECT pg_notify($1, 'last')", channel)
	e.hears(heard{payload: "last"})
	var n int
	if err := pool.QueryRow(t.Context(), "SELECT count(*)"+sessions, "hears").Scan(&n); err != nil || n != 1 {
		t.Errorf("%d connections of the application listen, %v; want 1", n, err)
	}
	if acquired := pool.Stat().AcquiredConns(); acquired != 0 {
		t.Errorf("%d connections of the pool are in use", acquired)
	}
	e.cancel()
	eventually(t, "the connection is closed", func() bool {
		return pool.QueryRow(t.Context(), "SELECT count(*)"+sessions, "hears").Scan(&n) == nil && n == 0
	})
	if len(mine) > 0 {
		t.Errorf("the application's handler heard %q", <-mine)
	}
}

func TestAListenerWhoseConnectionWasEndedSaysToLookAgain(t *testing.T) {
	pool := newPool(t, pgtest.DSN(t), named("ended"))
	e := listen(t, pool, "done")
	e.hears(listening)
	for range 3 {
		if n := exec(t, pool, "SELECT pg_terminate_backend(pid)"+sessions, "ended"); n != 1 {
			t.Fatalf("%d connections ended; want 1", n)
		}
		e.hears(polling, listening)
		exec(t, pool, "SELECT pg_notify('done', 'again')")
		e.hears(heard{payload: "again"})
	}
	if n := e.log.count("level=WARN"); n != 3 {
		t.Errorf("%d warnings; want one for each connection that was lost", n)
	}
}

func TestAListenerNeedsNoConnectionOfABusyPool(t *testing.T) {
	pool := newPool(t, pgtest.DSN(t), named("busy"), func(config *pgxpool.Config) { config.MaxConns = 1 })
	conn, err := pool.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Release()
	e := listen(t, pool, "done", pgxstore.CheckEvery(100*time.Millisecond))
	e.hears(listening)
	e.nothing(4 * time.Second) // some checks, each of which waits for the pool first
	if _, err := conn.Exec(t.Context(), "NOTIFY done, 'a'"); err != nil {
		t.Fatal(err)
	}
	e.hears(heard{payload: "a"})
}

// network makes connections that can be frozen: nothing arrives on them any more, and
// no error says so.
type network struct {
	mu     sync.Mutex
	frozen chan struct{} // closed: connections that were made before are frozen
	end    chan struct{} // closed: nothing is frozen
}

type frozenConn struct {
	net.Conn
	frozen, end <-chan struct{}
	mu          sync.Mutex
	deadline    time.Time
	changed     chan struct{} // closed when the deadline changes
}

func newNetwork() *network { return &network{frozen: make(chan struct{}), end: make(chan struct{})} }

func (n *network) through(config *pgxpool.Config) {
	config.ConnConfig.DialFunc = func(ctx context.Context, network, addr string) (net.Conn, error) {
		conn, err := (&net.Dialer{}).DialContext(ctx, network, addr)
		if err != nil {
			return nil, err
		}
		n.mu.Lock()
		defer n.mu.Unlock()
		return &frozenConn{Conn: conn, frozen: n.frozen, end: n.end, changed: make(chan struct{})}, nil
	}
}

// freeze freezes the connections that there are.
func (n *network) freeze() {
	n.mu.Lock()
	defer n.mu.Unlock()
	close(n.frozen)
	n.frozen = make(chan struct{})
}

func (c *frozenConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	select {
	case <-c.frozen:
	default:
		return n, err
	}
	for { // what has arrived is lost
		c.mu.Lock()
		deadline, changed := c.deadline, c.changed
		c.mu.Unlock()
		var over <-chan time.Time
		if !deadline.IsZero() {
			over = time.After(time.Until(deadline))
		}
		select {
		case <-over:
			return 0, os.ErrDeadlineExceeded
		case <-c.end:
			return 0, net.ErrClosed
		case <-changed:
		}
	}
}

func (c *frozenConn) SetDeadline(t time.Time) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.deadline = t
	close(c.changed)
	c.changed = make(chan struct{})
	return c.Conn.SetDeadline(t)
}

func TestAListenerNoticesThatItsConnectionIsDeadWithoutASign(t *testing.T) {
	n := newNetwork()
	defer close(n.end) // or the pool waits for what is frozen
	dsn := pgtest.DSN(t)
	pool := newPool(t, dsn, n.through)
	e := listen(t, pool, "done", pgxstore.CheckEvery(200*time.Millisecond))
	e.hears(listening)
	n.freeze()
	e.hears(polling, listening)
	exec(t, newPool(t, dsn), "SELECT pg_notify('done', 'a')")
	e.hears(heard{payload: "a"})
}

func TestAListenerWithoutAServerSaysSoOnceAndFindsIt(t *testing.T) {
	dsn := pgtest.DSN(t)
	var mu sync.Mutex
	down := true
	pool := newPool(t, dsn, func(config *pgxpool.Config) {
		config.BeforeConnect = func(context.Context, *pgx.ConnConfig) error {
			mu.Lock()
			defer mu.Unlock()
			if down {
				return errors.New("no server")
			}
			return nil
		}
	})
	e := listen(t, pool, "done")
	e.hears(polling)
	e.nothing(time.Second) // it is told once
	mu.Lock()
	down = false
	mu.Unlock()
	e.hears(listening)
	if warnings, all := e.log.count("no server"), e.log.count("level="); warnings != 1 || all != 2 {
		t.Errorf("%d warnings in %d lines; want 1 in 2", warnings, all)
	}
}

func TestABadListenerIsRefused(t *testing.T) {
	pool := newPool(t, pgtest.DSN(t))
	if _, err := pgxstore.NewListener(nil); !errors.Is(err, core.ErrConfig) {
		t.Errorf("without a pool: %v", err)
	}
	for _, d := range []time.Duration{0, -1} {
		if _, err := pgxstore.NewListener(pool, pgxstore.CheckEvery(d)); !errors.Is(err, core.ErrConfig) {
			t.Errorf("CheckEvery(%v): %v", d, err)
		}
	}
	l, err := pgxstore.NewListener(pool)
	if err != nil {
		t.Fatal(err)
	}
	for _, channel := range []string{"", "a\x00b", strings.Repeat("x", 64)} {
		err := l.Listen(t.Context(), channel, func(string) {}, func(bool) {})
		if !errors.Is(err, core.ErrConfig) {
			t.Errorf("channel %q: %v", channel, err)
		}
	}
}
