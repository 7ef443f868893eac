//go:build integration && unix

package postgres_test

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/driver"
	"github.com/interlock-go/interlock/core/pgstore"
	"github.com/interlock-go/interlock/trust/internal/pgtest"
)

// patience bounds how long a test waits for what must happen.
const patience = 20 * time.Second

// makeLocks makes the tables of a store.
func makeLocks(tb testing.TB, s *pgstore.Store) {
	tb.Helper()
	for range 2 { // the second finds them
		if err := s.Migrate(tb.Context()); err != nil {
			tb.Fatal(err)
		}
	}
}

// lockTable returns a database with the table of the locks in it.
func lockTable(tb testing.TB) *sql.DB {
	tb.Helper()
	db := pgtest.Open(tb)
	makeLocks(tb, newLocks(tb, db))
	return db
}

// dsnOf says how to connect to what a pool is connected to.
func dsnOf(tb testing.TB, db *sql.DB) string {
	tb.Helper()
	var dir, schema string
	if err := db.QueryRowContext(tb.Context(),
		"SELECT current_setting('unix_socket_directories'), current_schema()").Scan(&dir, &schema); err != nil {
		tb.Fatal(err)
	}
	return fmt.Sprintf("host=%s user=postgres dbname=postgres sslmode=disable search_path=%s", dir, schema)
}

// schemaOf returns the schema of the tables: a search path does not go through a pooler.
func schemaOf(tb testing.TB, db *sql.DB) (schema string) {
	tb.Helper()
	if err := db.QueryRowContext(tb.Context(), "SELECT current_schema()").Scan(&schema); err != nil {
		tb.Fatal(err)
	}
	return schema
}

// pool opens another pool of connections.
func pool(tb testing.TB, dsn string) *sql.DB {
	tb.Helper()
	db, err := sql.Open("pgx", dsn)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { db.Close() })
	return db
}

// config is what a test changes of a store; what is zero has its default.
type config struct {
	Schema, Prefix       string
	Timeout, Keep, Sweep time.Duration
	Listen               pgstore.Listener
	Log                  *slog.Logger
}

// options are the options of the store.
func (c config) options() (opts []pgstore.Option) {
	if c.Schema != "" {
		opts = append(opts, pgstore.Schema(c.Schema))
	}
	if c.Prefix != "" {
		opts = append(opts, pgstore.Prefix(c.Prefix))
	}
	if c.Timeout != 0 {
		opts = append(opts, pgstore.Timeout(c.Timeout))
	}
	if c.Keep != 0 {
		opts = append(opts, pgstore.KeepTokens(c.Keep))
	}
	if c.Sweep != 0 {
		opts = append(opts, pgstore.SweepEvery(c.Sweep))
	}
	if c.Listen != nil {
		opts = append(opts, pgstore.Listen(c.Listen))
	}
	return append(opts, pgstore.Logger(c.Log))
}

// slowly gives a request more time than the default: one that is tried again has an answer
// that is called ambiguous, which is no answer of the contract.
func slowly(c *config) { c.Timeout = 10 * time.Second }

// newLocks returns a store on a pool, with the defaults that a test does not change.
func newLocks(tb testing.TB, db *sql.DB, change ...func(*config)) *pgstore.Store {
	tb.Helper()
	c := config{Log: slog.New(slog.DiscardHandler)}
	for _, f := range change {
		f(&c)
	}
	s, err := pgstore.New(db, c.options()...)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if err := s.Close(); err != nil {
			tb.Errorf("Close: %v", err)
		}
	})
	return s
}

// newLocker returns a locker on a store, as a process has one.
func newLocker(tb testing.TB, s driver.Store, opts ...core.LockerOption) *core.Locker {
	tb.Helper()
	l, err := core.New(s, opts...)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		if err := l.Close(ctx); err != nil {
			tb.Errorf("Close: %v", err)
		}
	})
	return l
}

// eventually waits for a condition.
func eventually(tb testing.TB, what string, met func() bool) {
	tb.Helper()
	for end := time.Now().Add(patience); !met(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			tb.Fatalf("not within %v: %s", patience, what)
		}
	}
}

// containsText reports whether an error says something.
func containsText(err error, text string) bool {
	return err != nil && strings.Contains(err.Error(), text)
}

// querier is a pool, or a transaction.
type querier interface {
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
}

// judge sees who is in the sections under the locks of some keys, in memory.
type judge struct {
	inside, last      [64]atomic.Int64
	sections          atomic.Int64
	overlaps, regress atomic.Int64
}

// section is what a holder does under the lock of a key.
func (j *judge) section(key int, token int64) {
	if j.inside[key].Add(1) != 1 {
		j.overlaps.Add(1)
	}
	if last := j.last[key].Swap(token); last >= token {
		j.regress.Add(1)
	}
	j.sections.Add(1)
	j.inside[key].Add(-1)
}

// verdict fails the test if two holders were in a section at once, or a token went back.
func (j *judge) verdict(tb testing.TB, least int64) {
	tb.Helper()
	n := j.sections.Load()
	tb.Logf("%d sections", n)
	if o, r := j.overlaps.Load(), j.regress.Load(); o != 0 || r != 0 {
		tb.Errorf("%d overlaps and %d tokens that went back in %d sections", o, r, n)
	}
	if n < least {
		tb.Errorf("%d sections; want %d at least", n, least)
	}
}

// span returns a context that ends after a time, but not before there were so many
// sections: on a busy machine a process may sleep through a second of it.
func (j *judge) span(t *testing.T, d time.Duration, least int64) context.Context {
	t.Helper()
	return span(t, d, func() bool { return j.sections.Load() >= least })
}

// span returns a context that ends after a time, but not before something is so,
// unless that takes a minute.
func span(t *testing.T, d time.Duration, met func() bool) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 3*patience)
	t.Cleanup(cancel)
	begin := time.Now()
	go func() { // it ends with ctx, which the test's clean-up ends at the latest
		defer cancel()
		for ctx.Err() == nil && (time.Since(begin) < d || !met()) {
			time.Sleep(10 * time.Millisecond)
		}
	}()
	return ctx
}

// compete has goroutines of a locker enter sections of some keys until the context ends.
// Errors that say that the store did not answer are part of some tests; any other fails
// the test.
func (j *judge) compete(ctx context.Context, tb testing.TB, all *sync.WaitGroup, l *core.Locker, goroutines, keys int) {
	for g := range goroutines {
		all.Go(func() {
			for n := g; ctx.Err() == nil; n++ {
				lease, err := l.Lock(ctx, fmt.Sprint("key", n%keys))
				if err != nil {
					if ctx.Err() == nil && !errors.Is(err, core.ErrUnavailable) {
						tb.Errorf("Lock: %v", err)
					}
					continue
				}
				j.section(n%keys, lease.Token())
				_ = lease.Release(ctx) // what is not released the reaper releases, or the lease ends
			}
		})
	}
}

// listener hears notifications over a connection of pgx.
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
	listening, cancel := context.WithTimeout(context.WithoutCancel(ctx), patience)
	defer cancel()
	if _, err := conn.Exec(listening, "LISTEN "+channel); err != nil {
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

// relay stands between clients and a server, on a socket of its own.
type relay struct {
	dir  string
	gate sync.RWMutex // held for writing while nothing passes
	held atomic.Int64 // what the gate keeps from passing
	owed atomic.Int64 // requests whose whole reply has not passed
	lose atomic.Bool  // break the connection with the reply to the next statement that changes a lock

	mu    sync.Mutex
	conns []net.Conn
	work  sync.WaitGroup
}

// newRelay starts a relay in front of the server of a pool, and returns how to connect
// through it.
func newRelay(tb testing.TB, db *sql.DB) (r *relay, dsn string) {
	tb.Helper()
	dsn = dsnOf(tb, db)
	to := strings.TrimPrefix(strings.Fields(dsn)[0], "host=")
	dir, err := os.MkdirTemp("", "relay-") //nolint:usetesting // a short one: it is part of the name of a socket
	if err != nil {
		tb.Fatal(err)
	}
	r = &relay{dir: dir}
	const name = ".s.PGSQL.5432"
	front, err := net.Listen("unix", filepath.Join(dir, name))
	if err != nil {
		tb.Fatal(err)
	}
	r.work.Go(func() {
		for {
			client, err := front.Accept()
			if err != nil {
				return
			}
			server, err := net.Dial("unix", filepath.Join(to, name))
			if err != nil {
				_ = client.Close()
				continue
			}
			r.keep(client, server)
			var deaf atomic.Bool
			r.work.Go(func() { r.pass(client, server, &deaf, false) })
			r.work.Go(func() { r.pass(server, client, &deaf, true) })
		}
	})
	tb.Cleanup(func() {
		_ = front.Close()
		r.mu.Lock()
		for _, c := range r.conns {
			_ = c.Close()
		}
		r.mu.Unlock()
		r.work.Wait()
		_ = os.RemoveAll(dir)
	})
	return r, strings.Replace(dsn, to, dir, 1) + " default_query_exec_mode=exec"
}

func (r *relay) keep(all ...net.Conn) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.conns = append(r.conns, all...)
}

// pass copies what comes from one side to the other. Statements are to be sent with their
// texts, in one piece (default_query_exec_mode=exec).
func (r *relay) pass(from, to net.Conn, deaf *atomic.Bool, replies bool) {
	defer from.Close()
	defer to.Close()
	buf := make([]byte, 1<<16)
	for {
		n, err := from.Read(buf)
		if n > 0 {
			switch {
			case replies && deaf.Load():
				return
			case !replies:
				r.owed.Add(1)
				if bytes.Contains(buf[:n], []byte("UPDATE ")) && r.lose.CompareAndSwap(true, false) {
					deaf.Store(true)
				}
			}
			r.held.Add(1)
			r.gate.RLock()
			r.held.Add(-1)
			_, err2 := to.Write(buf[:n])
			r.gate.RUnlock()
			if replies && bytes.HasSuffix(buf[:n], []byte("Z\x00\x00\x00\x05I")) { // ready for a query
				r.owed.Add(-1)
			}
			err = errors.Join(err, err2)
		}
		if err != nil {
			return
		}
	}
}

// said keeps the lines of a log.
type said struct {
	mu    sync.Mutex
	lines []string
}

func (s *said) logger() *slog.Logger { return slog.New(slog.NewTextHandler(s, nil)) }

// Write implements io.Writer.
func (s *said) Write(line []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lines = append(s.lines, string(line))
	return len(line), nil
}

// count returns how many lines have a text in them.
func (s *said) count(text string) (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for line := range slices.Values(s.lines) {
		if strings.Contains(line, text) {
			n++
		}
	}
	return n
}

var _ io.Writer = (*said)(nil)
