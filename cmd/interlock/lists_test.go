package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"iter"
	"strings"
	"testing"
	"testing/synctest"
	"time"
	"unicode/utf8"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/driver"
	"github.com/interlock-go/interlock/core/fleet"
	"github.com/interlock-go/interlock/core/idempotency/record"
)

// shelf is a store with locks and records in memory. A list of it ends with the error, after all else.
type shelf struct {
	driver.Store // calls of other methods end the test
	record.Lister
	held    []driver.View
	records []record.View
	err     error
	pause   time.Duration // before each lock of a list
}

func (s *shelf) List(context.Context, string, func(string) bool) iter.Seq2[driver.View, error] {
	return each(s.held, s.err, s.pause)
}

func (s *shelf) ListRecords(context.Context, string, bool) iter.Seq2[record.View, error] {
	return each(s.records, s.err, 0)
}

func (s *shelf) Look(ctx context.Context, key string) (driver.View, error) {
	for _, v := range s.held {
		if v.Key == key {
			return v, context.Cause(ctx)
		}
	}
	return driver.View{Key: key}, context.Cause(ctx)
}

// fleet opens the store for operators.
func (s *shelf) fleet(t *testing.T) *fleet.Fleet {
	t.Helper()
	f, err := fleet.On(s)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func each[T any](all []T, err error, pause time.Duration) iter.Seq2[T, error] {
	return func(yield func(T, error) bool) {
		for _, one := range all {
			if time.Sleep(pause); !yield(one, nil) {
				return
			}
		}
		if err != nil {
			var zero T
			yield(zero, err)
		}
	}
}

// heldLocks returns locks with the keys k0, k1 and so on.
func heldLocks(n int) (all []driver.View) {
	for i := range n {
		all = append(all, driver.View{Key: fmt.Sprint("k", i), Holders: []driver.HolderView{{Owner: "o:1"}}})
	}
	return all
}

// A reader of JSON broke at the head of a table, and a head that stands above an error says that there is nothing.
func TestAListHasAHeadOnlyWhereItIsATableThatWasRead(t *testing.T) {
	away := errors.New("the server is away")
	for name, c := range map[string]struct {
		shelf shelf
		json  bool
		limit int
		lines int
	}{
		"a table":                           {shelf: shelf{held: heldLocks(3)}, lines: 4},
		"a table with a limit":              {shelf: shelf{held: heldLocks(3)}, limit: 2, lines: 3},
		"an empty table":                    {lines: 1},
		"a table that fails at once":        {shelf: shelf{err: away}},
		"a table that fails later":          {shelf: shelf{held: heldLocks(3), err: away}, lines: 4},
		"JSON":                              {shelf: shelf{held: heldLocks(3)}, json: true, lines: 3},
		"JSON with a limit":                 {shelf: shelf{held: heldLocks(3)}, json: true, limit: 2, lines: 2},
		"empty JSON":                        {json: true},
		"JSON that fails later":             {shelf: shelf{held: heldLocks(3), err: away}, json: true, lines: 3},
		"a table of more than one block":    {shelf: shelf{held: heldLocks(2*block + 1)}, lines: 2*block + 2},
		"a table of more blocks that fails": {shelf: shelf{held: heldLocks(2 * block), err: away}, lines: 2*block + 1},
	} {
		for range c.shelf.held {
			c.shelf.records = append(c.shelf.records, record.View{ID: "r", State: record.StateUnknown})
		}
		for kind, list := range map[string]func(to *call) error{
			"ls": func(to *call) error {
				return (&listing{limit: c.limit}).stream(t.Context(), c.shelf.fleet(t), "", to)
			},
			"idem ls": func(to *call) error {
				return (&settling{limit: c.limit}).stream(t.Context(), to, c.shelf.fleet(t), fleet.RecordQuery{})
			},
		} {
			var out, stderr bytes.Buffer
			err := list(&call{stdout: &out, stderr: &stderr, json: c.json})
			if !errors.Is(err, c.shelf.err) {
				t.Errorf("%s, %s: error %v; want %v", kind, name, err, c.shelf.err)
			}
			if n := strings.Count(out.String(), "\n"); n != c.lines {
				t.Errorf("%s, %s: %d lines; want %d\n%s", kind, name, n, c.lines, &out)
			}
			for line := range strings.Lines(out.String()) {
				if c.json && !strings.HasPrefix(line, "{") {
					t.Errorf("%s, %s: the line %q; want JSON", kind, name, line)
				}
			}
		}
	}
}

// An unknown state gave an empty list, as if nothing had to be settled.
func TestAListOfRecordsInAStateThatDoesNotExistIsAWrongCommandLine(t *testing.T) {
	for _, args := range [][]string{{"-state", "unknwon"}, {"-state", "none"}} {
		r := want(t, exitUsage, append([]string{"-addr", "127.0.0.1:1", "idem", "ls"}, args...)...)
		if r.out != "" || !strings.Contains(r.stderr, args[1]) || !strings.Contains(r.stderr, "in-flight, handed-over, lapsed, open, unknown, completed") {
			t.Errorf("idem ls %q: %+v; want the accepted states", args, r)
		}
	}
}

// One hash of a record in 64 begins with a dash.
func TestAHashThatBeginsWithADashIsNoFlag(t *testing.T) {
	hash := "-" + strings.Repeat("a", 42)
	for _, c := range []struct {
		args []string
		want []string // unless nil, the arguments of the command
	}{
		{[]string{"idem", "show", hash}, []string{"show", hash}},
		{[]string{"idem", "-json", "show", hash, "-step", "x"}, []string{"show", hash}},
		{[]string{"idem", "resolve", hash, "-not-carried-out"}, []string{"resolve", hash}},
		{[]string{"idem", "resolve", "-" + hash[:42], "-status", "201"}, []string{"resolve", "-" + hash[:42]}},
		{[]string{"idem", "ls", "-after", hash, "-limit", "1"}, []string{"ls"}},
		{[]string{"idem", "ls", "-limit", hash}, nil},
		{[]string{"idem", "show", hash[:42]}, nil},
		{[]string{"idem", "show", "--", "-p", "-k"}, []string{"show", "-p", "-k"}},
		{[]string{"ls", hash}, nil},
	} {
		call := &call{conn: fromEnvironment(func(string) string { return "" })}
		_, err := call.parse(c.args)
		if (err == nil) != (c.want != nil) || err == nil && strings.Join(call.args, " ") != strings.Join(c.want, " ") {
			t.Errorf("%q: the arguments %q, error %v; want %q", c.args, call.args, err, c.want)
		}
	}
	if r := want(t, exitUsage, "inspect", "-account"); !strings.Contains(r.stderr, "-- goes before an argument that begins with a dash") {
		t.Errorf("%q; want a word about two dashes", r.stderr)
	}
}

// A list is told to go on after a hash in a form that a shell and the tool can read.
func TestAListGoesOnAfterAHashThatBeginsWithADash(t *testing.T) {
	hash := "-" + strings.Repeat("a", 42)
	s := &shelf{records: []record.View{{ID: hash, State: record.StateUnknown}, {ID: "b", State: record.StateUnknown}}}
	var out, stderr bytes.Buffer
	if err := (&settling{limit: 1}).stream(t.Context(), &call{stdout: &out, stderr: &stderr}, s.fleet(t), fleet.RecordQuery{}); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(stderr.String(), "-after="+hash+"\n") {
		t.Errorf("%q; want -after=%s", &stderr, hash)
	}
}

// A search through 300,000 keys takes 15 s, and the server was blamed for it.
func TestASearchForAHashTakesAsLongAsAList(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &shelf{held: heldLocks(30), pause: time.Second}
		inspect := func(args ...string) (ran, time.Duration) {
			var out, stderr bytes.Buffer
			c := &call{stdout: &out, stderr: &stderr, conn: fromEnvironment(func(string) string { return "" })}
			if _, err := c.parse(append([]string{"inspect"}, args...)); err != nil {
				t.Fatal(err)
			}
			c.action = func(ctx context.Context, c *call) error { return c.inspect(ctx, s.fleet(t), args[0]) }
			began := time.Now()
			code := c.exit(c.carryOut(t.Context()))
			return ran{code, out.String(), stderr.String()}, time.Since(began)
		}
		r, took := inspect(core.Hashed("k29").Hash())
		if r.code != exitDone || !strings.Contains(r.out, "k29") || took != 30*time.Second {
			t.Errorf("after %v: %+v; want k29 after 30s", took, r)
		}
		if r, _ := inspect(strings.Repeat("0", 16)); r.code != exitNo {
			t.Errorf("%+v; want exit code %d", r, exitNo)
		}
	})
}

// The rows of a list are wider than a terminal: each took two lines, and the first were scrolled away.
func TestAListInPlaceFitsTheTerminal(t *testing.T) {
	var long []fleet.Lock
	for i := range 40 {
		long = append(long, fleet.Lock{
			Key: strings.Repeat("鍵k", 50) + fmt.Sprint(i), Kind: fleet.Exclusive, Held: 1,
			Holders: []fleet.Holder{{Owner: "o:1"}}, Waiters: make([]fleet.Waiter, 3),
		})
	}
	for _, s := range []screen{usual, {rows: 10, columns: 40}, {rows: 60, columns: 200}} {
		o := &listing{limit: max(1, s.rows-watchFrame)}
		text := s.inPlace(o.page(long[:min(o.limit, len(long))], true, true) + "12:00:00  " + strings.Repeat("an error ", 40) + "\n")
		lines := strings.Split(text, "\n")
		if len(lines) > s.rows {
			t.Errorf("%+v: %d lines, the cursor's included; want %d at most", s, len(lines), s.rows)
		}
		for _, line := range lines {
			line = strings.TrimSuffix(strings.TrimPrefix(strings.TrimPrefix(line, "\x1b[H"), "\x1b[J"), "\x1b[K")
			if wide := utf8.RuneCountInString(line) + strings.Count(line, "鍵"); wide > s.columns {
				t.Errorf("%+v: a line of %d columns: %q", s, wide, line)
			}
		}
	}
	if got := usual.cut(strings.Repeat("a", 80)); got != strings.Repeat("a", 80) {
		t.Errorf("a line that just fits becomes %q", got)
	}
	if got := usual.cut(strings.Repeat("a", 81)); got != strings.Repeat("a", 79)+"…" {
		t.Errorf("a line of 81 letters becomes %q", got)
	}
}

// A query that is wrong is not asked of the server.
func TestAWrongAnswerOfAResolutionIsAWrongCommandLine(t *testing.T) {
	for _, args := range [][]string{{"-status", "9999"}, {"-status", "200", "-protocol", "htpp"}} {
		r := want(t, exitUsage, append([]string{"-addr", "127.0.0.1:1", "idem", "resolve", "p", "k"}, args...)...)
		if r.out != "" || strings.Contains(r.stderr, driver.ErrUnavailable.Error()) {
			t.Errorf("idem resolve %q: %+v; want what was wrong", args, r)
		}
	}
}
