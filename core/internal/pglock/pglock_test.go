package pglock

import (
	"context"
	sqldriver "database/sql/driver"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/interlock-go/interlock/core/driver"
	"github.com/interlock-go/interlock/core/observe"
)

// state is an error of the server, as pgx and lib/pq have it.
type state string

func (s state) Error() string    { return "ERROR: (SQLSTATE " + string(s) + ")" }
func (s state) SQLState() string { return string(s) }

// A log that says no more than that the store is unavailable helps no operator.
func TestWhyTheStoreIsUnavailableIsTheRootCause(t *testing.T) {
	for _, err := range []error{errShut, errFull, errUnwanted, errNoAnswer, wrap(state("42P01"), refused)} {
		if root := observe.RootCause(err); errors.Is(root, driver.ErrUnavailable) || !errors.Is(err, driver.ErrUnavailable) && !errors.Is(err, driver.ErrNotReady) {
			t.Errorf("%v: its root cause is %v", err, root)
		}
		if errors.As(observe.RootCause(err), new(state)) {
			t.Errorf("%v: its root cause does not say what to do", err)
		}
	}
}

func TestFates(t *testing.T) {
	broken := errors.New("broken pipe")
	for _, c := range []struct {
		err  error
		sent bool
		want fate
		as   error // the caller's result
	}{
		{broken, false, unsent, driver.ErrUnavailable},
		{broken, true, unknown, driver.ErrUnavailable},
		{context.DeadlineExceeded, false, unsent, driver.ErrUnavailable},
		{context.DeadlineExceeded, true, unknown, driver.ErrUnavailable},
		{sqldriver.ErrBadConn, false, unsent, driver.ErrUnavailable},
		{sqldriver.ErrBadConn, true, unknown, driver.ErrUnavailable},
		{state("57P03"), false, notReady, driver.ErrNotReady},
		{state("53300"), false, notReady, driver.ErrNotReady},
		{state("28P01"), false, unsent, driver.ErrUnavailable},
		{state("08006"), true, unknown, driver.ErrUnavailable},
		{state("57P01"), true, unknown, driver.ErrUnavailable},
		{state("53100"), true, unknown, driver.ErrUnavailable},
		{state("53200"), true, unknown, driver.ErrNotReady},
		{state("58030"), true, unknown, driver.ErrNotReady},
		{state("XX000"), true, unknown, driver.ErrNotReady},
		{state("40001"), true, collided, driver.ErrNotReady},
		{state("40P01"), true, collided, driver.ErrNotReady},
		{state("55P03"), true, collided, driver.ErrNotReady},
		{state("25006"), true, notReady, driver.ErrNotReady},
		{state("57014"), true, notReady, driver.ErrNotReady},
		{state("42P01"), true, refused, driver.ErrUnavailable},
		{state("22021"), true, refused, driver.ErrUnavailable},
	} {
		wrapped := fmt.Errorf("some layer: %w", c.err)
		if got := fateOf(wrapped, c.sent); got != c.want {
			t.Errorf("%v, sent %v: fate %d; want %d", c.err, c.sent, got, c.want)
		}
		if got := wrap(wrapped, c.want); !errors.Is(got, c.as) || !errors.Is(got, c.err) {
			t.Errorf("%v, sent %v: the caller gets %v", c.err, c.sent, got)
		}
	}
}

func TestArrays(t *testing.T) {
	batch := []*request{
		{key: "", owner: "", ttl: 1},
		{key: "\x00\xff\"", owner: `a"b\c,{}`, ttl: time.Microsecond},
		{key: "k", owner: "NULL", ttl: 1500},
	}
	for got, want := range map[string]string{
		bytesArray(batch, func(r *request) string { return r.key }):  `{"\\x","\\x00ff22","\\x6b"}`,
		textArray(batch, func(r *request) string { return r.owner }): `{"","a\"b\\c,{}","NULL"}`,
		numberArray(batch, ttl): "{1,1,2}",
	} {
		if got != want {
			t.Errorf("%s; want %s", got, want)
		}
	}
}

func TestStatementsNameTheTable(t *testing.T) {
	s := statementsFor("other.locks", strings.Clone)
	for _, text := range append(s.of[:], s.take, s.free, s.look, s.sweep) {
		if strings.Contains(text, DefaultTable) || !strings.Contains(text, "other.locks") || strings.Contains(text, "--") {
			t.Errorf("not the table's name, or a comment, in\n%s", text)
		}
	}
}

// The requests of one statement are of one kind, with one request for a key; a request
// that is to go alone goes alone; and a request that no caller waits for is not sent.
func TestBatches(t *testing.T) {
	l := &lane{}
	w := &worker{lane: l, keys: map[string]struct{}{}}
	add := func(k kind, key string, change ...func(*request)) {
		r := &request{kind: k, key: key, asks: k == acquires}
		for _, f := range change {
			f(r)
		}
		l.queue = append(l.queue, r)
	}
	add(acquires, "a")
	add(releases, "b")
	add(acquires, "a")
	add(acquires, "left", func(r *request) { r.caller.Leave() })
	add(acquires, "late", func(r *request) { r.deadline = time.Now().Add(-time.Second) })
	add(acquires, "alone", func(r *request) { r.alone = true })
	add(acquires, "c")
	add(releases, "left", func(r *request) { r.caller.Leave() }) // it releases, also without a caller
	// The second try of a release after the first took all its time.
	add(releases, "again", func(r *request) { r.stubborn, r.tries, r.deadline = true, 1, time.Now().Add(-time.Second) })
	add(releases, "given up", func(r *request) { r.stubborn, r.tries, r.deadline = true, 2, time.Now().Add(-time.Second) })
	var got []string
	for len(l.queue) > 0 {
		l.take(w)
		text := ""
		for _, r := range w.batch {
			text += fmt.Sprint(r.kind, r.key, " ")
		}
		got = append(got, text)
		w.batch = nil
		clear(w.keys)
	}
	if want := []string{"0a 0c ", "2b 2left 2again ", "0a ", "0alone "}; !slices.Equal(got, want) {
		t.Errorf("batches %q; want %q", got, want)
	}
	if len(w.unwanted) != 3 {
		t.Errorf("%d requests are not sent; want 3", len(w.unwanted))
	}
}

// quiet is a Listener that hears nothing.
type quiet struct{ Listener }

// watched returns a store that hears, and what the watcher of a key is told.
func watched(key string, announce func(message string)) (s *Store, told *[]driver.Signal) {
	told = new([]driver.Signal)
	s = New(nil, Config{Listen: quiet{}, Announce: announce})
	on := &topic{key: key, hash: hashOf(key), watchers: map[*watcher]struct{}{
		{wake: func(signal driver.Signal) { *told = append(*told, signal) }}: {},
	}}
	s.watches.topics[key], s.watches.hashed[on.hash] = on, on
	return s, told
}

// All stores hear the announcement of a release, late or not, and each tells it once. It names the next
// lockers, unless the list is too long. If the release is not known, it only asks the others to look.
func TestAnnouncementsOfReleases(t *testing.T) {
	const key = "k"
	var announced []string
	s, told := watched(key, func(message string) { announced = append(announced, message) })
	other, heard := watched(key, nil)
	s.watches.released(key, answer{called: 1, list: "a,b"})
	s.watches.released(key, answer{called: 2, list: strings.Repeat("x", 7001)})
	s.watches.released(key, answer{called: 3}) // no locker waits
	s.watches.uncertain(key)
	before := len(*told)
	for _, message := range announced {
		if len(message) >= 8000 {
			t.Errorf("an announcement has %d bytes; PostgreSQL takes less than 8000", len(message))
		}
		s.watches.hear(message)
		other.watches.hear(message)
	}
	if again := (*told)[before:]; before != 4 || !slices.Equal(again, []driver.Signal{{}}) {
		t.Errorf("the watcher of the store that releases was told %d times, and %+v later; want 4 times, and to look after the "+
			"release that is not known", before, again)
	}
	if want := []driver.Signal{{Next: "a,b"}, {}, {}}; !slices.Equal(*heard, want) {
		t.Errorf("the watcher of the other store was told %+v; want %+v", *heard, want)
	}
}
