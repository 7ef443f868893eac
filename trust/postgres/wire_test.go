//go:build integration && unix

package postgres_test

import (
	"bytes"
	"context"
	"database/sql"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"
)

// wire is the network between the connections of a pool and the server. Its functions may
// be nil. They are set before it is used, and are called from any goroutine; text is the
// last write of a connection. If a function returns an error, the connection breaks.
type wire struct {
	dialing  func() error
	sending  func(text []byte) error // before a write
	sent     func(text []byte) error // after it
	answered func(text []byte) error // when the first bytes of the answer are there

	mu     sync.Mutex
	frozen *atomic.Bool // of the connections that are made now
}

// commit is a part of pgx's message for the end of a transaction: the text of a simple query.
var commit = []byte("commit\x00")

// dial connects to a server. Drivers take it as their function for that.
func (w *wire) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	if w.dialing != nil {
		if err := w.dialing(); err != nil {
			return nil, err
		}
	}
	conn, err := (&net.Dialer{}).DialContext(ctx, network, addr)
	if err != nil {
		return nil, err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.frozen == nil {
		w.frozen = new(atomic.Bool)
	}
	return &wired{Conn: conn, wire: w, frozen: w.frozen}, nil
}

// freeze has nothing more arrive on the connections that there are, and no error say so.
func (w *wire) freeze() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.frozen.Store(true)
	w.frozen = nil
}

// through returns a pool of connections on the wire. Each statement is written with its text,
// in one piece.
func (w *wire) through(tb testing.TB, dsn string) *sql.DB {
	tb.Helper()
	db, err := w.open(dsn)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = db.Close() })
	return db
}

func (w *wire) open(dsn string) (*sql.DB, error) {
	config, err := pgx.ParseConfig(dsn)
	if err != nil {
		return nil, err
	}
	config.DefaultQueryExecMode = pgx.QueryExecModeExec
	config.DialFunc = w.dial
	return stdlib.OpenDB(*config), nil
}

// wired is a connection on a wire.
type wired struct {
	net.Conn
	wire   *wire
	frozen *atomic.Bool

	mu    sync.Mutex
	asked []byte // the last write without an answer
}

func (c *wired) Write(b []byte) (int, error) {
	c.mu.Lock()
	c.asked = bytes.Clone(b)
	c.mu.Unlock()
	if err := c.after(c.wire.sending, b); err != nil {
		return 0, err
	}
	n, err := c.Conn.Write(b)
	if err == nil {
		_ = c.after(c.wire.sent, b) // the next call of the driver finds the connection broken
	}
	return n, err
}

func (c *wired) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	for err == nil && c.frozen.Load() { // arrived data is lost
		n, err = c.Conn.Read(b)
	}
	c.mu.Lock()
	asked := c.asked
	c.asked = nil
	c.mu.Unlock()
	if n > 0 && asked != nil {
		if broken := c.after(c.wire.answered, asked); broken != nil {
			return 0, broken
		}
	}
	return n, err
}

// after calls a function of the wire.
func (c *wired) after(f func([]byte) error, text []byte) error {
	if f == nil {
		return nil
	}
	err := f(text)
	if err != nil {
		_ = c.Close()
	}
	return err
}

// breaking returns a function of a wire. It breaks one connection: the first to write a text
// after arm.
func breaking(text []byte) (f func([]byte) error, arm func(), met func() bool) {
	var armed, done atomic.Bool
	return func(b []byte) error {
		if bytes.Contains(b, text) && armed.CompareAndSwap(true, false) {
			done.Store(true)
			return io.ErrUnexpectedEOF
		}
		return nil
	}, func() { armed.Store(true) }, done.Load
}
