package pglock

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"slices"
	"strconv"
	"time"
)

// locksAfter is after how many lost compares a request locks its row before it reads it. So it has
// its turn, however many processes change the row, and however far this one is from the server.
const locksAfter = 2

// querier is a connection, or a transaction on it.
type querier interface {
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
}

// carry carries the requests of the batch out. Those for one key share a row.
func (w *worker) carry(ctx context.Context) error {
	s, all := w.lane.store, changes(w.batch)
	locks := slices.ContainsFunc(w.batch, (*request).locks)
	err := inTx(ctx, w.conn, locks, func(q querier) error {
		if locks {
			if err := s.lock(ctx, q, all); err != nil {
				return err
			}
		}
		for _, c := range all {
			if !locks {
				c.guess(s)
			}
		}
		return s.settle(ctx, q, all)
	})
	if err == nil && ctx.Err() != nil {
		// A driver may ask the server to cancel a statement after the end of its time, and take
		// the answer that then comes. PostgreSQL gives a success for a transaction if its wait
		// for a synchronous standby was cancelled.
		err = ctx.Err()
	}
	for _, c := range all {
		switch {
		case err == nil && c.done:
			c.answer(s)
		default:
			c.unanswered()
		}
	}
	if err == nil {
		// The answers stand also if it is not found out why they are refusals.
		if failed := s.lookForNotes(ctx, w.conn, w.batch); failed != nil {
			w.settle(ctx, failed)
		}
	}
	return err
}

// unanswered takes back what was decided.
func (c *change) unanswered() {
	for _, r := range c.asks {
		r.answer = nil
	}
}

// settle sends the changes. A guess that was refused is decided anew, and sent again. A change that loses its compare with a row that was just read is not done.
func (s *Store) settle(ctx context.Context, q querier, all []*change) error {
	for {
		todo := slices.DeleteFunc(slices.Clone(all), func(c *change) bool { return c.done || c.lost })
		if len(todo) == 0 {
			return nil
		}
		if err := s.send(ctx, q, todo); err != nil {
			return err
		}
		for _, c := range todo {
			if c.lost = c.lost || !c.done && c.known; !c.done && !c.lost {
				c.found(s)
			}
		}
	}
}

// inTx calls f with a connection, or in a transaction. Above READ COMMITTED a transaction would fail
// if it has to wait for the lock of a row.
func inTx(ctx context.Context, conn *sql.Conn, locks bool, f func(querier) error) error {
	if !locks {
		return f(conn)
	}
	tx, err := conn.BeginTx(ctx, &sql.TxOptions{Isolation: sql.LevelReadCommitted})
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }() // after a commit it does nothing
	if err := f(tx); err != nil {
		return err
	}
	return tx.Commit()
}

// lock locks the rows of some changes, and has the rules decide on them.
func (s *Store) lock(ctx context.Context, q querier, all []*change) error {
	idle := strconv.FormatInt(max(s.set.Timeout.Milliseconds(), 1), 10)
	begin := time.Now()
	rows, err := q.QueryContext(ctx, s.text.Load().lock, bytesArray(all, keyOf), s.rowTimeout(), idle)
	return s.each(rows, err, begin, all, func(c *change, _ bool) { c.found(s) })
}

func keyOf(c *change) string { return c.key }

// send writes the rows of some changes. A row that does not change, or has changed since, is read.
func (s *Store) send(ctx context.Context, q querier, all []*change) error {
	flush, begin := "off", time.Now()
	if slices.ContainsFunc(all, func(c *change) bool { return c.lasts }) {
		flush = "on"
	}
	text := func(field func(*change) string) string { return textArray(all, field) }
	number := func(field func(*change) int64) string { return numberArray(all, field) }
	var notes []note
	for i, c := range all {
		for _, n := range c.notes {
			n.of = int64(i) + 1
			notes = append(notes, n)
		}
	}
	var rows *sql.Rows
	var err error
	if c := all[0]; len(all) == 1 && len(notes) == 0 {
		rows, err = q.QueryContext(ctx, s.text.Load().one, []byte(c.key), c.base.version(), c.written(), c.token, c.ends.UnixMicro(),
			c.number(), c.next.calls, c.at.now.UnixMicro(), c.at.now.Add(c.within).UnixMicro(), s.rowTimeout(), flush)
	} else {
		rows, err = q.QueryContext(ctx, s.text.Load().write, bytesArray(all, keyOf),
			text(func(c *change) string { return c.base.version() }), text((*change).written),
			number(func(c *change) int64 { return c.token }), number(func(c *change) int64 { return c.ends.UnixMicro() }),
			number((*change).number), text(func(c *change) string { return c.next.calls }),
			number(func(c *change) int64 { return c.at.now.UnixMicro() }), number(func(c *change) int64 { return c.at.now.Add(c.within).UnixMicro() }),
			s.rowTimeout(), flush,
			bytesArray(notes, func(n note) string { return n.key }), numberArray(notes, func(n note) int64 { return n.why }),
			numberArray(notes, func(n note) int64 { return n.of }),
			numberArray(notes, func(n note) int64 { return n.ends.UnixMicro() }))
	}
	err = s.each(rows, err, begin, all, func(c *change, done bool) {
		if c.done = done; !done || c.known {
			return
		}
		renews := func(r *request) bool { return r.answer.renewed }
		if c.lag = c.clock.Sub(c.at.now); c.lag > c.within && slices.ContainsFunc(c.asks, renews) { // the lease is too short
			c.done, c.lost = false, true
			for _, r := range c.asks {
				r.ambiguous = true
			}
		}
	})
	if err == nil && flush == "off" {
		s.trips.Note(time.Since(begin)) // it does not wait for the disk
	}
	return err
}

// written is the record to write; empty if the row is only read.
func (c *change) written() string {
	if !c.writes {
		return ""
	}
	return c.next.text
}

// number is the number of the calls that the row notes; zero if the row keeps the earlier ones.
func (c *change) number() int64 {
	if c.next.called == c.base.called {
		return 0
	}
	return c.next.called
}

// each calls f for each row of an answer about some changes, to a statement that was sent at the instant begin.
func (s *Store) each(rows *sql.Rows, failed error, begin time.Time, all []*change, f func(c *change, done bool)) error {
	var last int64
	err := each(rows, failed, func() error {
		var i int
		var is row
		var now int64
		var done bool
		if err := rows.Scan(&i, &done, &is.text, &is.called, &is.calls, &now); err != nil || i < 1 || i > len(all) {
			return cmp.Or(err, errOther)
		}
		c := all[i-1]
		c.is, c.clock, last = is, time.UnixMicro(now), now
		f(c, done)
		return nil
	})
	if err == nil && last != 0 {
		s.clock.saw(time.UnixMicro(last), begin)
	}
	return err
}

// locks reports whether a request has lost so many compares that it locks its row.
func (r *request) locks() bool { return r.collisions >= locksAfter }

// each calls f for each row of an answer. Only when all rows are read, and the end of the
// answer too, is it known that the server has committed.
func each(rows *sql.Rows, failed error, f func() error) (err error) {
	if failed != nil {
		return failed
	}
	defer func() { err = errors.Join(err, rows.Close()) }()
	for rows.Next() {
		if err := f(); err != nil {
			return err
		}
	}
	return rows.Err()
}
