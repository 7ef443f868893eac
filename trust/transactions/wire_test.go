//go:build long

package transactions

import (
	"bytes"
	"context"
	"database/sql"
	"net"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"
)

// commits calls functions around the commits of connections.
type commits struct {
	// sending is called before a commit is sent, and sent after it; answered when the
	// first bytes of its answer are there. True closes the connection.
	sending, sent, answered func() (cut bool)
}

// wire is a connection to PostgreSQL.
type wire struct {
	net.Conn
	at         *commits
	committing atomic.Bool
}

// dial returns a pool whose connections call the functions. pgx sends "commit" as the
// text of a simple query.
func dial(dsn string, at *commits) (*sql.DB, error) {
	config, err := pgx.ParseConfig(dsn)
	if err != nil {
		return nil, err
	}
	config.DialFunc = func(ctx context.Context, network, addr string) (net.Conn, error) {
		conn, err := (&net.Dialer{}).DialContext(ctx, network, addr)
		if err != nil {
			return nil, err
		}
		return &wire{Conn: conn, at: at}, nil
	}
	return stdlib.OpenDB(*config), nil
}

func (w *wire) Write(b []byte) (int, error) {
	if !bytes.Contains(b, []byte("commit\x00")) {
		return w.Conn.Write(b)
	}
	w.committing.Store(true)
	if w.at.sending != nil && w.at.sending() {
		_ = w.Close()
		return 0, net.ErrClosed
	}
	n, err := w.Conn.Write(b)
	if err == nil && w.at.sent != nil && w.at.sent() {
		_ = w.Close()
	}
	return n, err
}

func (w *wire) Read(b []byte) (int, error) {
	n, err := w.Conn.Read(b)
	if err == nil && n > 0 && w.committing.CompareAndSwap(true, false) && w.at.answered != nil && w.at.answered() {
		_ = w.Close()
		return 0, net.ErrClosed
	}
	return n, err
}

// pool is dial for a test.
func pool(t *testing.T, dsn string, at *commits) *sql.DB {
	t.Helper()
	db, err := dial(dsn, at)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	return db
}
