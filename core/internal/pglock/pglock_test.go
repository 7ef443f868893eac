package pglock

import (
	"context"
	sqldriver "database/sql/driver"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/interlock-go/interlock/core/driver"
	"github.com/interlock-go/interlock/core/driver/keystate"
	"github.com/interlock-go/interlock/core/internal/ident"
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
	batch := []note{{key: "", why: 1}, {key: "\x00\xff\"", why: -1}, {key: `a"b\c,{}`, why: 2}}
	key := func(n note) string { return n.key }
	for got, want := range map[string]string{
		bytesArray(batch[:2], key):                              `{"\\x","\\x00ff22"}`,
		textArray(batch[2:], key):                               `{"a\"b\\c,{}"}`,
		numberArray(batch, func(n note) int64 { return n.why }): "{1,-1,2}",
	} {
		if got != want {
			t.Errorf("%s; want %s", got, want)
		}
	}
}

func TestStatementsNameTheTable(t *testing.T) {
	s := statementsFor("other.locks", strings.Clone)
	for _, text := range []string{s.write, s.one, s.lock, s.noted, s.look, s.list, s.sweep} {
		if strings.Contains(text, DefaultTable) || !strings.Contains(text, "other.locks") || strings.Contains(text, "--") {
			t.Errorf("not the table's name, or a comment, in\n%s", text)
		}
	}
}

// Requests for one key go together. Others share a statement if the answers of all wait for the disk, or none; a
// request that is to go alone goes alone; and a request that no caller waits for is not sent.
func TestBatches(t *testing.T) {
	l := &lane{parked: map[string][]*request{}}
	add := func(lasts bool, key string, change ...func(*request)) {
		r := &request{lasts: lasts, key: key, asks: lasts}
		for _, f := range change {
			f(r)
		}
		l.queue = append(l.queue, r)
	}
	add(true, "a")
	add(false, "b")
	add(true, "a")
	add(false, "a")
	add(true, "left", func(r *request) { r.caller.Leave() })
	add(true, "late", func(r *request) { r.deadline = time.Now().Add(-time.Second) })
	add(true, "alone", func(r *request) { r.alone = true })
	add(true, "c")
	add(false, "left", func(r *request) { r.caller.Leave() }) // it releases, also without a caller
	// The second try of a release after the first took all its time.
	add(false, "again", func(r *request) { r.stubborn, r.tries, r.deadline = true, 1, time.Now().Add(-time.Second) })
	add(false, "given up", func(r *request) { r.stubborn, r.tries, r.deadline = true, 2, time.Now().Add(-time.Second) })
	var got []string
	unwanted := 0
	for len(l.queue) > 0 {
		w := &worker{lane: l, keys: map[string]struct{}{}}
		l.take(w)
		if len(got) == 1 { // the first worker is at work still
			l.queue = append(l.queue, &request{key: "a"})
		}
		text := ""
		for _, r := range w.batch {
			text += r.key + " "
		}
		got, unwanted = append(got, text), unwanted+len(w.unwanted)
	}
	if want := []string{"a a a c ", "b left again ", "alone "}; !slices.Equal(got, want) {
		t.Errorf("batches %q; want %q", got, want)
	}
	if unwanted != 3 {
		t.Errorf("%d requests are not sent; want 3", unwanted)
	}
	if n := len(l.parked["a"]); n != 1 {
		t.Errorf("%d requests wait for the worker that has their key; want 1", n)
	}
}

// quiet is a Listener that hears nothing.
type quiet struct{ Listener }

// waiting has a locker of a store wait for a key, in a list with the number of a call, and returns what it is called.
func waiting(t *testing.T, s *Store, id, key string, called int64) (told *[]driver.Call) {
	t.Helper()
	told = new([]driver.Call)
	s.calls.looking, s.calls.started = true, true // there is no server
	s.calls.listed(key, id, called, 0)
	if !s.calls.lockers.Has(id) {
		t.Cleanup(s.Calls(id, func(c driver.Call) { *told = append(*told, c) }))
	}
	return told
}

// turns are calls to lockers.
func turns(ids ...string) (all []keystate.Call) {
	for i, id := range ids {
		all = append(all, keystate.Call{To: id, Call: driver.Call{What: driver.Turn, In: time.Duration(i) * time.Millisecond, Others: i == 0}})
	}
	return all
}

// A call is announced to the lockers of other processes. Of the processes that hear it each calls its own
// lockers among these, once, and no others.
func TestACallReachesTheLockersThatItNames(t *testing.T) {
	const key = "k"
	var announced []string
	s := New(nil, Config{Listen: quiet{}, Announce: func(message string) { announced = append(announced, message) }})
	other := New(nil, Config{Listen: quiet{}})
	here, a, c := waiting(t, s, "here", key, 1), waiting(t, other, "a", key, 1), waiting(t, other, "c", key, 1)
	waiting(t, other, "a", "k2", 1)
	s.calls.make(key, 2, turns("a", "here"))
	s.calls.make(key, 3, turns("a"))
	s.calls.make(key, 4, turns("here"))
	s.calls.make(key, 4, []keystate.Call{
		{To: "a", Call: driver.Call{What: driver.Wanted, Owner: driver.Attentive("a:7")}}, {To: "c", Call: driver.Call{What: driver.Displaced}},
	})
	if len(announced) != 3 {
		t.Fatalf("announced are %q; want three messages: the lockers of this process are called directly", announced)
	}
	for range 2 { // late, and again
		for _, message := range announced {
			s.calls.hear(message)
		}
	}
	for _, message := range announced[:2] {
		other.calls.hear(message)
		other.calls.hear(message)
	}
	other.calls.hear(announced[2])
	turn := func(in time.Duration, others bool) driver.Call {
		return driver.Call{What: driver.Turn, Key: key, In: in, Others: others}
	}
	if want := []driver.Call{turn(time.Millisecond, false), turn(0, true)}; !slices.Equal(*here, want) {
		t.Errorf("the locker of the releasing process was called %+v; want %+v", *here, want)
	}
	wanted := driver.Call{What: driver.Wanted, Key: key, Owner: driver.Attentive("a:7")}
	if want := []driver.Call{turn(0, true), turn(0, true), wanted}; !slices.Equal(*a, want) {
		t.Errorf("the locker that is named was called %+v; want %+v", *a, want)
	}
	if want := []driver.Call{{What: driver.Displaced, Key: key}}; !slices.Equal(*c, want) {
		t.Errorf("the locker that was displaced was called %+v; want %+v", *c, want)
	}
	s.calls.uncertain(key)
	other.calls.hear(announced[len(announced)-1])
	if n := len(*c); n != 2 || (*c)[1] != (driver.Call{Key: key}) {
		t.Errorf("after a release that is not known, a locker was called %+v; want that it is to look", *c)
	}
}

// A call may come between the answer that lists a locker and the beginning of its calls. A look finds it then.
func TestACallBeforeTheCallsOfALockerIsNotLost(t *testing.T) {
	for name, c := range map[string]struct {
		known int64
		want  []driver.Call
	}{"since the answer": {1, []driver.Call{{What: driver.Turn, Key: "k", Others: true}}}, "before the answer": {2, nil}} {
		s := New(nil, Config{Listen: quiet{}})
		s.calls.looking, s.calls.started = true, true
		s.calls.listed("k", "w", c.known, 0)
		s.calls.hear(ident.Hash("k") + " another-store 2 w@0+")
		var told []driver.Call
		t.Cleanup(s.Calls("w", func(c driver.Call) { told = append(told, c) }))
		on := s.calls.waits[placeName(ident.Hash("k"), "w")]
		later := time.Now().Add(time.Second)
		s.calls.looked([]*wait{on}, []news{{row: row{text: list("w"), called: 2, calls: "w@0+"}, i: 1, there: true}}, nil, later, later)
		if !slices.Equal(told, c.want) {
			t.Errorf("%s: the locker is called %+v; want %+v", name, told, c.want)
		}
	}
}

// A call that cannot be read, as one of a later version, is left out.
func TestCallsAreReadAsTheyWereWritten(t *testing.T) {
	all := []keystate.Call{
		{To: "a", Call: driver.Call{What: driver.Offered, Token: 7, Others: true}},
		{To: "b", Call: driver.Call{What: driver.Turn, In: 5 * time.Millisecond}},
		{To: "c", Call: driver.Call{What: driver.Wanted, Owner: driver.Attentive("c:1")}},
		{To: "d", Call: driver.Call{What: driver.Displaced}},
	}
	const want = "a=7+ b@5000 c:1! d:0!"
	text := callsText(all)
	if got := readCalls("x x@-1 x=y " + text + " x@"); text != want || !slices.Equal(got, all) {
		t.Errorf("the calls are %q, and are read as %+v; want %q, and the calls", text, got, want)
	}
}

// endless is a Listener that hears nothing until its context ends.
type endless struct{}

func (endless) Listen(ctx context.Context, _ func(string), _ func(bool)) error {
	<-ctx.Done()
	return ctx.Err()
}

// A store may be closed between the beginning of its listener and the first step of that: Close waited for the
// listener without end.
func TestTheListenerOfAStoreThatIsClosedEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := New(nil, Config{Listen: endless{}})
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		ended := make(chan struct{})
		go func() {
			s.calls.listen()
			close(ended)
		}()
		synctest.Wait()
		select {
		case <-ended:
		default:
			t.Error("the listener goes on in a closed store; want that it ends")
		}
	})
}
