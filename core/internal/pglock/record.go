package pglock

import (
	"cmp"
	"context"
	"database/sql"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/interlock-go/interlock/core/driver"
	"github.com/interlock-go/interlock/core/driver/keystate"
	"github.com/interlock-go/interlock/core/internal/clock"
)

// locksAfter is after how many lost compares a request locks its row before it reads it. So it has
// its turn, however many processes change the row, and however far this one is from the server.
const locksAfter = 2

// ruling is the result of the rules for a request.
type ruling struct {
	rep       driver.Reply
	contended bool
	waiting   driver.Waiters
	lasts     bool // the write that it needs waits for the disk
	err       error
}

// rule has a record carry a request out. It may be called several times: the last ruling counts.
type rule func(rec *keystate.Record, now time.Time, v *ruling) keystate.Notices

// by sets the rule of a request, in case that the row of its key has a record.
func (r *request) by(rule rule) {
	r.rule = rule
	if r.kind != records && r.store.watches.recorded(r.key) {
		r.kind = records
	}
}

// change has the requests of a batch for one key, and the new row that they make.
type change struct {
	key     string
	asks    []*request
	version string // of the row that was read; empty: there was none

	row    keystate.Row // if text is empty
	text   string       // of the record
	writes bool
	lasts  bool // the write waits for the disk
	heard  keystate.Notices
	notes  []note
	called int64 // by the row that was written
}

// decide carries the requests of the batch out on the records of their keys: it reads the rows, asks
// the rules, and writes the rows that have changed. Requests for one key share all three.
func (w *worker) decide(ctx context.Context) error {
	var all []*change
	of := make(map[string]*change)
	for _, r := range w.batch {
		c := of[r.key]
		if c == nil {
			c = &change{key: r.key}
			of[r.key], all = c, append(all, c)
		}
		c.asks = append(c.asks, r)
	}
	slices.SortFunc(all, func(a, b *change) int { return cmp.Compare(a.key, b.key) })
	s, locks := w.lane.store, slices.ContainsFunc(w.batch, (*request).locks)
	decide := func(q querier) error {
		if err := s.read(ctx, q, all, locks); err != nil {
			return err
		}
		if err := s.lookForNotes(ctx, q, w.batch); err != nil {
			return err
		}
		return s.write(ctx, q, slices.DeleteFunc(slices.Clone(all), func(c *change) bool { return !c.writes }))
	}
	err := inTx(ctx, w.conn, locks, decide)
	for _, c := range all {
		if err == nil && (c.called >= 0 || !c.writes) {
			c.answer(s)
		}
	}
	return err
}

// querier is a connection, or a transaction on it.
type querier interface {
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
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

// read reads the rows, and has the rules decide.
func (s *Store) read(ctx context.Context, q querier, all []*change, locks bool) error {
	text := s.text.Load().read
	if locks {
		text = s.text.Load().lock
	}
	keys := bytesArray(all, func(c *change) string { return c.key })
	rows, err := q.QueryContext(ctx, text, keys, s.rowTimeout(), strconv.FormatInt(max(s.set.Timeout.Milliseconds(), 1), 10))
	return each(rows, err, func() error {
		var i int
		var ends, now int64
		var v keystate.Row
		var c change
		err := rows.Scan(&i, &c.version, &v.Owner, &v.Token, &ends, &v.Waiting, &c.text, &now)
		if err != nil || i < 1 || i > len(all) {
			return cmp.Or(err, errOther)
		}
		v.Ends = time.UnixMicro(ends)
		all[i-1].version = c.version
		all[i-1].rule(v, c.text, time.UnixMicro(now))
		return nil
	})
}

// rule has the rules decide on a row that was read.
func (c *change) rule(v keystate.Row, text string, now time.Time) {
	rec, err := recordOf(v, text)
	if err != nil {
		for _, r := range c.asks {
			r.answer.ruling = &ruling{err: err}
		}
		return
	}
	rec.At(now)
	before, _ := rec.AppendText(nil) // the texts of requests are checked: it has no error
	c.called = -1
	for _, r := range c.asks {
		v := new(ruling)
		n := r.rule(rec, now, v)
		r.answer.ruling = v
		c.lasts = c.lasts || v.lasts
		c.note(r, n, now)
		c.notice(n, rec)
	}
	after, _ := rec.AppendText(nil)
	c.writes = c.lasts || string(before) != string(after)
	c.text = ""
	signal := signalText(c.heard.Signal)
	var plain bool
	// The row of a call names the called lockers to lockers that look.
	if c.row, plain = rec.Row(now); !plain || c.heard.Announced && signal != string(c.row.Waiting) {
		c.row = keystate.Row{Token: c.row.Token, Ends: rec.Ended().Add(keepRecord), Waiting: driver.Waiters(signal)}
		c.text = string(after)
	}
}

// recordOf reads the record of a row: its text, unless it has none.
func recordOf(v keystate.Row, text string) (*keystate.Record, error) {
	if text == "" {
		return v.Record(), nil
	}
	rec := new(keystate.Record)
	return rec, rec.UnmarshalText([]byte(text))
}

// keepRecord is how long a record is kept after the last lease in it, at least: for the turns of the lockers
// that wait.
const keepRecord = time.Minute

// notice adds the notices of a request to those of the requests before it.
func (c *change) notice(n keystate.Notices, rec *keystate.Record) {
	h := &c.heard
	h.Wanted = append(h.Wanted, n.Wanted...)
	if n.Displaced != "" {
		h.Displaced = n.Displaced
	}
	h.Freed = h.Freed || n.Announced || n.Freed && rec.Free()
	switch {
	case !n.Announced:
	case h.Announced && h.Signal.Now > 0 && n.Signal.Now > 0:
		h.Signal.Now += n.Signal.Now // for the lockers of the first list, among them those of the second
	case !h.Announced || n.Signal.Now == 0:
		h.Announced, h.Signal = true, n.Signal
	}
}

// write writes the rows that have changed. A row that was changed by another transaction stays, and
// keeps a negative called.
func (s *Store) write(ctx context.Context, q querier, all []*change) error {
	if len(all) == 0 {
		return nil
	}
	flush := "off"
	if slices.ContainsFunc(all, func(c *change) bool { return c.lasts }) {
		flush = "on"
	}
	column := func(field func(*change) string) string { return textArray(all, field) }
	number := func(field func(*change) int64) string { return numberArray(all, field) }
	var notes []note
	for i, c := range all {
		for _, n := range c.notes {
			n.of = int64(i) + 1
			notes = append(notes, n)
		}
	}
	rows, err := q.QueryContext(ctx, s.text.Load().write,
		bytesArray(all, func(c *change) string { return c.key }), column(func(c *change) string { return c.version }),
		number(func(c *change) int64 { return c.row.Token }), number(func(c *change) int64 { return c.row.Ends.UnixMicro() }),
		column(func(c *change) string { return c.text }), column(func(c *change) string { return c.row.Owner }),
		column(func(c *change) string { return string(c.row.Waiting) }), column(func(c *change) string { return strconv.FormatBool(c.heard.Freed) }),
		s.rowTimeout(), flush,
		bytesArray(notes, func(n note) string { return n.key }), numberArray(notes, func(n note) int64 { return n.why }),
		numberArray(notes, func(n note) int64 { return n.of }),
		numberArray(notes, func(n note) int64 { return n.ends.UnixMicro() }))
	return each(rows, err, func() error {
		var i int
		var called int64
		err := rows.Scan(&i, &called)
		if err != nil || i < 1 || i > len(all) {
			return cmp.Or(err, errOther)
		}
		all[i-1].called = called
		return nil
	})
}

// answer gives the requests of a change that was made their answers, and tells others about it.
func (c *change) answer(s *Store) {
	for _, r := range c.asks {
		r.answer.there = r.answer.ruling != nil
	}
	s.watches.record(c.key, c.text != "")
	if c.heard.Announced {
		s.watches.released(c.key, answer{called: c.called, list: signalText(c.heard.Signal)})
	}
	if c.heard.Displaced != "" {
		c.heard.Wanted = append(c.heard.Wanted, driver.Attentive(c.heard.Displaced+":0"))
	}
	for _, owner := range c.heard.Wanted {
		s.watches.want(c.key, owner)
	}
}

// locks reports whether a request has lost so many compares that it locks its row.
func (r *request) locks() bool { return r.kind == records && r.collisions >= locksAfter }

// park keeps a request on a record that another worker changes at this moment: it would only lose
// its compare. Called with l.mu held.
func (l *lane) park(r *request) (parked bool) {
	others, parked := l.parked[r.key]
	if parked {
		l.parked[r.key] = append(others, r)
	}
	return parked
}

// unpark queues the requests that were parked while a worker changed the records of its batch.
func (l *lane) unpark(w *worker) {
	if !w.parks {
		return
	}
	w.parks = false
	l.mu.Lock()
	var all []*request
	for key := range w.keys {
		all = append(all, l.parked[key]...)
		delete(l.parked, key)
	}
	l.mu.Unlock()
	if len(all) > 0 {
		l.submit(all...)
	}
}

// signalText returns a signal as announcements and rows have it.
func signalText(signal driver.Signal) string {
	if signal.Now > 0 {
		return "*" + strconv.Itoa(signal.Now) + "," + string(signal.Next)
	}
	return string(signal.Next)
}

// signalOf reads such a text.
func signalOf(text string) (signal driver.Signal) {
	rest, partly := strings.CutPrefix(text, "*")
	if !partly {
		return driver.Signal{Next: driver.Waiters(text)}
	}
	number, next, _ := strings.Cut(rest, ",")
	signal.Next = driver.Waiters(next)
	signal.Now, _ = strconv.Atoi(number) // of another text, zero: all lockers ask
	return signal
}

// micros rounds a lease up to µs: a lease is never shorter than its holder thinks.
func micros(d time.Duration) time.Duration {
	return time.Duration(clock.Ceil(d, time.Microsecond)) * time.Microsecond
}
