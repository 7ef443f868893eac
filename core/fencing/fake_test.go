package fencing_test

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
)

// fakeDB is a database that records its requests, in words. The answers to real claims
// are tested on real databases, in the module trust.
type fakeDB struct {
	mu     sync.Mutex
	log    []string
	fails  map[string]error // by the beginning of a statement
	latest int64            // a larger token than any claim's, unless 0
	locked bool             // a claim waits for the end of its context
	hangs  <-chan struct{}  // a commit waits until it is closed, also after the end of the context
}

func (f *fakeDB) open() *sql.DB { return sql.OpenDB(f) }

func (f *fakeDB) said() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.log)
}

func (f *fakeDB) note(what string, args ...driver.NamedValue) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, a := range args {
		what += fmt.Sprintf(" [%v]", a.Value)
	}
	f.log = append(f.log, what)
	for prefix, err := range f.fails {
		if strings.HasPrefix(what, prefix) {
			return err
		}
	}
	return nil
}

func (f *fakeDB) Connect(context.Context) (driver.Conn, error) { return fakeConn{f}, nil }
func (f *fakeDB) Driver() driver.Driver                        { return nil }

type fakeConn struct{ *fakeDB }

func (c fakeConn) Prepare(string) (driver.Stmt, error) { return nil, errors.ErrUnsupported }
func (c fakeConn) Close() error                        { return nil }
func (c fakeConn) Begin() (driver.Tx, error)           { return c, c.note("begin") }
func (c fakeConn) Rollback() error                     { return c.note("rollback") }

func (c fakeConn) Commit() error {
	if c.hangs != nil {
		<-c.hangs
	}
	return c.note("commit")
}

func (c fakeConn) ExecContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Result, error) {
	if c.locked {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	changed := driver.RowsAffected(1)
	if c.latest != 0 {
		changed = 0
	}
	return changed, c.note(query, args...)
}

func (c fakeConn) QueryContext(_ context.Context, query string, args []driver.NamedValue) (driver.Rows, error) {
	return &fakeRows{latest: c.latest}, c.note(query, args...)
}

// fakeRows is one row of one column, or none.
type fakeRows struct{ latest int64 }

func (*fakeRows) Columns() []string { return []string{"token"} }
func (*fakeRows) Close() error      { return nil }

func (r *fakeRows) Next(row []driver.Value) error {
	if r.latest <= 0 {
		return io.EOF
	}
	row[0], r.latest = r.latest, 0
	return nil
}
