package pglock

import (
	"slices"
	"testing"
	"time"

	"github.com/interlock-go/interlock/core/driver/keystate"
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
// turns have passed.
func TestALookFindsWhoWasCalledAndWhoseTurnHasPassed(t *testing.T) {
	for name, c := range map[string]struct {
		called int64
		names  string
		text   string
		want   []keystate.Signal
	}{
		"no call since":                    {1, "w", list("w"), nil},
		"it was called":                    {2, "w~a,x~a", list("w~a", "x~a"), []keystate.Signal{{Next: "w~a,x~a"}}},
		"another was called":               {2, "x~a", list("w~a"), nil},
		"its turn has passed":              {2, "x~a", list("x~a"), []keystate.Signal{{}}},
		"it was called, and lost its turn": {2, "w~a,x~a", list(), []keystate.Signal{{Next: "w~a,x~a"}}},
		"a place":                          {2, "*1,+w~a", list("+w~a"), []keystate.Signal{{Next: "+w~a", Now: 1}}},
	} {
		s := New(nil, Config{})
		told := waiting(s, "w", "k", 1)
		on := s.watches.topics["k"]
		begin := time.Now().Add(time.Second)
		n := news{row: row{text: c.text, called: c.called, names: c.names}, i: 1, there: true}
		for range 2 {
			s.watches.looked([]*topic{on}, []news{n}, nil, begin, begin)
		}
		if !slices.Equal(*told, c.want) {
			t.Errorf("%s: told was %+v; want %+v, once", name, *told, c.want)
		}
	}
}

// A look may have read the row before a call that comes while its answer is on the way, or before an answer to the
// locker itself.
func TestALookDoesNotTellAnEarlierCallAfterALaterOne(t *testing.T) {
	s := New(nil, Config{})
	told := waiting(s, "w", "k", 1)
	began := time.Now().Add(-time.Second)
	topics := []*topic{s.watches.topics["k"]}
	earlier := []news{{row: row{text: list(), called: 2, names: "w~a"}, i: 1, there: true}}
	s.watches.call("k", row{called: 3, names: "w~a,x~a"}, "")
	s.watches.looked(topics, earlier, nil, began, time.Now())
	if want := []keystate.Signal{{Next: "w~a,x~a"}}; !slices.Equal(*told, want) {
		t.Errorf("a look that began before the call wakes the watcher with %+v; want %+v", *told, want)
	}
	s.watches.listed("k", "w", 4, 0)
	s.watches.looked(topics, earlier, nil, began, time.Now())
	if len(*told) != 1 {
		t.Errorf("a look that began before the locker was refused wakes it with %+v", (*told)[1:])
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
		s.watches.proof.holds = c.heard
		if got := s.watches.pause(&topic{ahead: c.ahead, quiet: now.Add(-c.quiet)}, now); got != c.want {
			t.Errorf("%+v: the next look is in %v; want %v", c, got, c.want)
		}
	}
}
