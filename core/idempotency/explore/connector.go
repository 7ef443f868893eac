package explore

import (
	"context"
	"database/sql/driver"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
)

// Connector returns a connector to a real database for one process: the process can die or stand still before and after
// each statement and each commit, which can also get lost, or lose their answers. When the process dies, its connections are
// closed, and the database rolls the open transactions back.
//
//	db := sql.OpenDB(p.Connector(connector))
//	p.Cleanup(func() { _ = db.Close() })
//
// Give the sessions a lock_timeout of 50 ms: fake time stands still while a statement waits for a lock, and a process that
// stands still may hold it. Rows are read without faults, and so are prepared statements. All runs share the database: [Service.Start] empties its
// tables.
func (p *Process) Connector(c driver.Connector) driver.Connector { return &connector{p, c} }

type connector struct {
	process *Process
	driver.Connector
}

// Connect implements [driver.Connector].
func (c *connector) Connect(ctx context.Context) (driver.Conn, error) {
	inner, err := c.Connector.Connect(ctx)
	if err != nil {
		return nil, err
	}
	own := &conn{Conn: inner, process: c.process}
	stop := make(chan struct{})
	own.close = sync.OnceValue(func() error {
		close(stop)
		return own.alone(inner.Close)
	})
	go func() {
		select {
		case <-c.process.died:
			_ = own.close()
		case <-stop:
		}
	}()
	return own, nil
}

// conn is a connection of a process.
type conn struct {
	driver.Conn
	process *Process
	close   func() error
	mu      sync.Mutex  // of the calls: a death closes the connection from another goroutine
	cause   string      // of the open transaction
	broken  atomic.Bool // an answer was lost
}

// alone makes a call of the driver, which does not expect two at a time.
func (c *conn) alone(call func() error) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return call()
}

// Close implements [driver.Conn].
func (c *conn) Close() error { return c.close() }

// BeginTx implements [driver.ConnBeginTx].
func (c *conn) BeginTx(ctx context.Context, opts driver.TxOptions) (driver.Tx, error) {
	c.cause = causeOf(ctx)
	var tx driver.Tx
	err := c.process.call(c.cause, "BEGIN", func() (err error) {
		c.mu.Lock()
		defer c.mu.Unlock()
		if begin, ok := c.Conn.(driver.ConnBeginTx); ok {
			tx, err = begin.BeginTx(ctx, opts)
		} else {
			tx, err = c.Conn.Begin() //nolint:staticcheck // of drivers that have nothing else
		}
		return err
	})
	if err != nil {
		return nil, c.failed(err)
	}
	return &conntx{tx, c}, nil
}

// conntx is an open transaction.
type conntx struct {
	driver.Tx
	conn *conn
}

// Commit implements [driver.Tx].
func (t *conntx) Commit() error {
	return t.conn.failed(t.conn.process.call(t.conn.cause, "COMMIT", func() error { return t.conn.alone(t.Tx.Commit) }))
}

// Rollback implements [driver.Tx].
func (t *conntx) Rollback() error { return t.conn.alone(t.Tx.Rollback) }

// ExecContext implements [driver.ExecerContext].
func (c *conn) ExecContext(ctx context.Context, query string, args []driver.NamedValue) (result driver.Result, err error) {
	exec, ok := c.Conn.(driver.ExecerContext)
	if !ok {
		return nil, driver.ErrSkip
	}
	failed := c.process.call(causeOf(ctx), verb(query), func() error {
		return c.alone(func() error {
			result, err = exec.ExecContext(ctx, query, args)
			return err
		})
	})
	return result, c.failed(failed)
}

// QueryContext implements [driver.QueryerContext].
func (c *conn) QueryContext(ctx context.Context, query string, args []driver.NamedValue) (rows driver.Rows, err error) {
	ask, ok := c.Conn.(driver.QueryerContext)
	if !ok {
		return nil, driver.ErrSkip
	}
	failed := c.process.call(causeOf(ctx), verb(query), func() error {
		return c.alone(func() error {
			rows, err = ask.QueryContext(ctx, query, args)
			return err
		})
	})
	return rows, c.failed(failed)
}

// failed notes that the connection is broken. Then database/sql closes it, and the server rolls an open transaction back.
func (c *conn) failed(err error) error {
	if errors.Is(err, ErrLost) {
		c.broken.Store(true)
	}
	return err
}

// IsValid implements [driver.Validator].
func (c *conn) IsValid() bool {
	inner, ok := c.Conn.(driver.Validator)
	return !c.broken.Load() && (!ok || inner.IsValid())
}

// ResetSession implements [driver.SessionResetter].
func (c *conn) ResetSession(ctx context.Context) error {
	if inner, ok := c.Conn.(driver.SessionResetter); ok {
		return c.alone(func() error { return inner.ResetSession(ctx) })
	}
	return nil
}

// CheckNamedValue implements [driver.NamedValueChecker].
func (c *conn) CheckNamedValue(v *driver.NamedValue) error {
	if inner, ok := c.Conn.(driver.NamedValueChecker); ok {
		return inner.CheckNamedValue(v)
	}
	return driver.ErrSkip
}

// verb names a statement by its first words.
func verb(query string) string {
	words := strings.Fields(query)
	return strings.Join(words[:min(3, len(words))], " ")
}
