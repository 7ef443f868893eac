package pglock

import (
	"slices"
	"testing"
	"time"

	"github.com/interlock-go/interlock/core/driver"
	"github.com/interlock-go/interlock/core/internal/ident"
)

// list is the record of a held lock with a list.
func list(names ...string) string {
	text := `{"v":1,"owner":"o:1","token":1,"waiting":[`
	for i, name := range names {
		if i > 0 {
			text += ","
		}
		text += `{"name":"` + name + `"}`
	}
	return text + "]}"
}

// A look finds a call by its number: which lockers were called, and which have lost their places in the list, as their
// turns have passed. A locker that was offered the lock asks for it: the row need not be on the standby.
func TestALookFindsWhoWasCalledAndWhoseTurnHasPassed(t *testing.T) {
	turn := driver.Call{What: driver.Turn, Key: "k", In: time.Millisecond, Others: true}
	for name, c := range map[string]struct {
		called int64
		calls  string
		text   string
		want   []driver.Call
	}{
		"no call since":                    {1, "w@0", list("w"), nil},
		"it was called":                    {2, "x@0 w@1000+", list("x~a", "w~a"), []driver.Call{turn}},
		"it was offered the lock":          {2, "w=7+ x@0", list("w~A", "x~a"), []driver.Call{{What: driver.Turn, Key: "k"}}},
		"another was called":               {2, "x@0", list("w~a"), nil},
		"its turn has passed":              {2, "x@0", list("x~a"), []driver.Call{{Key: "k"}}},
		"it was called, and lost its turn": {2, "w@1000+ x@0", list(), []driver.Call{turn}},
	} {
		s := New(nil, Config{})
		told := waiting(t, s, "w", "k", 1)
		on := s.calls.waits[placeName(ident.Hash("k"), "w")]
		begin := time.Now().Add(time.Second)
		n := news{row: row{text: c.text, called: c.called, calls: c.calls}, i: 1, there: true}
		for range 2 {
			s.calls.looked([]*wait{on}, []news{n}, nil, begin, begin)
		}
		if !slices.Equal(*told, c.want) {
			t.Errorf("%s: the locker is called %+v; want %+v, once", name, *told, c.want)
		}
	}
}

// A look may have read the row before a call that comes while its answer is on the way, or before an answer to the
// locker itself.
func TestALookDoesNotTellAnEarlierCallAfterALaterOne(t *testing.T) {
	s := New(nil, Config{})
	told := waiting(t, s, "w", "k", 1)
	began := time.Now().Add(-time.Second)
	waits := []*wait{s.calls.waits[placeName(ident.Hash("k"), "w")]}
	earlier := []news{{row: row{text: list(), called: 2, calls: "w@0"}, i: 1, there: true}}
	s.calls.make("k", 3, turns("w", "x"))
	s.calls.looked(waits, earlier, nil, began, time.Now())
	if want := []driver.Call{{What: driver.Turn, Key: "k", Others: true}}; !slices.Equal(*told, want) {
		t.Errorf("a look that began before the call has the locker called %+v; want %+v", *told, want)
	}
	s.calls.listed("k", "w", 4, 0)
	s.calls.looked(waits, earlier, nil, began, time.Now())
	if len(*told) != 1 {
		t.Errorf("a look that began before the locker was refused has it called %+v", (*told)[1:])
	}
}

// The turn of a locker comes after those before it. The first two of a list look as often as each other: the second
// is mostly called before it knows that it has become the first.
func TestALockerFurtherBackLooksLessOften(t *testing.T) {
	s := New(nil, Config{Listen: quiet{}})
	now := time.Now()
	for _, c := range []struct {
		ahead int
		quiet time.Duration // since the last event
		heard bool
		want  time.Duration
	}{
		{0, 0, false, lookSoonest},
		{1, 0, false, lookSoonest},
		{3, 0, false, 3 * lookSoonest},
		{100, 0, false, lookLatest},
		{0, 400 * time.Millisecond, false, 100 * time.Millisecond},
		{0, time.Hour, false, lookLatest},
		{3, 0, true, heardSoonest},
		{0, time.Hour, true, heardLatest},
	} {
		s.calls.proof.holds = c.heard
		if got := s.calls.pause(&wait{ahead: c.ahead, quiet: now.Add(-c.quiet)}, now); got != c.want {
			t.Errorf("%+v: the next look is in %v; want %v", c, got, c.want)
		}
	}
}
