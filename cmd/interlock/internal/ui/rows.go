package ui

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"math"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/interlock-go/interlock/core/fleet"
	"github.com/interlock-go/interlock/internal/display"
)

// row is one row of a table. Its values are ready to be shown, and comparable.
type row interface {
	// ident is the same for the same thing in each reading, and safe in HTML.
	ident() string
	// part is the name of the template that shows it.
	part() string
	// like reports whether the row shows what an older one does, but for times that
	// pass by themselves.
	like(old row) bool
}

// process is a locker as it is shown.
type process struct {
	Host, PID, Service string
	ID                 string // where no more is known
	Renews             string // yes, no, unknown
	HandedOver         bool   // it has handed the lock over, and the lock is kept for a ticket
}

// times pass on the page by themselves, in milliseconds since 1970.
type times struct {
	Since int64 // 0 if it is not known
	End   int64 // 0 if the lease never ends
}

// lockRow is a lock in the table of locks.
type lockRow struct {
	ID, Link string
	Key      string
	Kind     string
	Process  process // its first holder
	More     int     // how many more holders it has
	Token    int64
	Waiters  int
	Times    times
	began    int64 // when its oldest known grant was, in µs, for the order
}

// holderRow is a holder on the page of a lock.
type holderRow struct {
	ID      string
	Process process
	Owner   string
	Token   int64
	Times   times
	Release string // the link, if it can be released

	Attentive bool // its process is notified at once
}

// waiterRow is a waiter on the page of a lock.
type waiterRow struct {
	ID       string
	Position int
	Process  process
	Wants    string
}

func (r lockRow) ident() string   { return r.ID }
func (r holderRow) ident() string { return r.ID }
func (r waiterRow) ident() string { return r.ID }

func (lockRow) part() string   { return "lock-row" }
func (holderRow) part() string { return "holder-row" }
func (waiterRow) part() string { return "waiter-row" }

func (r lockRow) like(old row) bool {
	o, ok := old.(lockRow)
	if !ok || !r.Times.like(o.Times) {
		return false
	}
	o.Times, o.began = r.Times, r.began
	return o == r
}

func (r holderRow) like(old row) bool {
	o, ok := old.(holderRow)
	if !ok || !r.Times.like(o.Times) {
		return false
	}
	o.Times = r.Times
	return o == r
}

func (r waiterRow) like(old row) bool { return r == old }

// like reports whether times are from an older reading. Each reading computes them
// from durations, so they differ a little.
func (t times) like(old times) bool {
	near := func(a, b int64) bool { return (a == 0) == (b == 0) && max(a-b, b-a) < time.Second.Milliseconds() }
	return near(t.Since, old.Since) && near(t.End, old.End)
}

// identOf makes an identifier for HTML of any text.
func identOf(text string) string {
	sum := sha256.Sum256([]byte(text))
	return "r" + hex.EncodeToString(sum[:8])
}

// linkTo returns the link to a page of a key. It keeps each byte of the key.
func linkTo(page, key string, more ...string) string {
	q := url.Values{"key": {key}}
	for i := 0; i+1 < len(more); i += 2 {
		q.Set(more[i], more[i+1])
	}
	return page + "?" + q.Encode()
}

func processOf(l *fleet.Locker) process {
	p := process{Renews: l.Renews(), ID: short(l.ID, 12)}
	if l.Listed {
		p.Host, p.PID = short(l.Host, 80), strconv.Itoa(l.PID)
		p.Service = strings.TrimSpace(short(l.Service, 80) + " " + short(l.Version, 40))
	}
	return p
}

// holderOf is processOf for a holder. Of a lock that is handed over it is the process that had the lock.
func holderOf(h *fleet.Holder) process {
	p := processOf(&h.Locker)
	p.HandedOver = h.HandedOver
	return p
}

func timesOf(h *fleet.Holder, at time.Time) (t times) {
	if !h.Since.IsZero() {
		t.Since = at.Add(-h.Age).UnixMilli()
	}
	if h.Left >= 0 {
		t.End = at.Add(h.Left).UnixMilli()
	}
	return t
}

// short returns a text as it is shown, cut if it is very long.
func short(text string, most int) string {
	if runes := []rune(display.Text(text)); len(runes) > most {
		return string(runes[:most-1]) + "…"
	}
	return display.Text(text)
}

// lockRowOf makes the row of a lock that was read at a time.
func lockRowOf(l *fleet.Lock, at time.Time) lockRow {
	r := lockRow{
		ID: identOf(l.Key), Link: linkTo("lock", l.Key), Key: short(l.Key, 200),
		Kind: kindOf(l), Waiters: len(l.Waiters), More: max(0, l.Held-1), began: math.MaxInt64,
	}
	if l.Kept > 0 && len(l.Waiters) > 0 {
		r.Process, r.Times.End = processOf(&l.Waiters[0].Locker), at.Add(l.Kept).UnixMilli()
	}
	if len(l.Holders) == 0 {
		return r
	}
	first := &l.Holders[0]
	for i := range l.Holders {
		h := &l.Holders[i]
		if !h.Since.IsZero() {
			r.began = min(r.began, h.Since.UnixMicro())
		}
		if h.Token < first.Token {
			first = h
		}
	}
	r.Process, r.Token, r.Times = holderOf(first), first.Token, timesOf(first, at)
	return r
}

func kindOf(l *fleet.Lock) string {
	switch {
	case l.Kept > 0:
		return "kept for"
	case l.Kind != fleet.Places:
		return l.Kind
	case l.Held == 1:
		return "1 place"
	}
	return fmt.Sprintf("%d places", l.Held)
}

// sorts are the orders of the table, the default first, with their names on the page.
var sorts = []struct{ Name, Title string }{
	{"waiters", "most waiters first"},
	{"age", "longest held first"},
	{"left", "least lease left first"},
	{"key", "by key"},
}

// sortOf returns a known name of an order.
func sortOf(name string) string {
	for _, s := range sorts {
		if s.Name == name {
			return name
		}
	}
	return sorts[0].Name
}

// orders compare two rows. Rows that are equal in them are in the order of their keys.
var orders = map[string]func(a, b *lockRow) int{
	"waiters": func(a, b *lockRow) int {
		return cmp.Or(cmp.Compare(b.Waiters, a.Waiters), cmp.Compare(a.began, b.began))
	},
	"age": func(a, b *lockRow) int { return cmp.Compare(a.began, b.began) },
	// By whole seconds: each reading computes the end a little differently.
	"left": func(a, b *lockRow) int { return cmp.Compare(a.Times.left(), b.Times.left()) },
	"key":  func(*lockRow, *lockRow) int { return 0 },
}

// left is the end of the lease in seconds; a lease that never ends comes after all others.
func (t times) left() int64 {
	if t.End == 0 {
		return math.MaxInt64
	}
	return t.End / 1000
}

// top keeps the first locks of an order, each once.
type top struct {
	most  int
	order func(a, b *lockRow) int
	rows  []lockRow
	all   map[string]int // where a lock is in rows
	seen  int            // locks that were added, as far as that is known
}

func newTop(sort string, most int) *top {
	return &top{most: most, order: orders[sort], all: map[string]int{}}
}

// add adds a lock, or replaces it: a reading may come to the same lock twice.
func (t *top) add(r lockRow) {
	if i, ok := t.all[r.ID]; ok {
		t.rows[i] = r
		return
	}
	t.seen++
	t.all[r.ID] = len(t.rows)
	if t.rows = append(t.rows, r); len(t.rows) >= 2*t.most {
		t.cut()
	}
}

// cut keeps the first rows, in order.
func (t *top) cut() {
	slices.SortFunc(t.rows, func(a, b lockRow) int { return cmp.Or(t.order(&a, &b), cmp.Compare(a.Key, b.Key)) })
	if len(t.rows) > t.most {
		t.rows = t.rows[:t.most]
	}
	clear(t.all)
	for i := range t.rows {
		t.all[t.rows[i].ID] = i
	}
}
