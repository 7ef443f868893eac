package pgstore

import (
	"strings"
	"testing"
	"time"
)

func TestEachUnsafeConditionIsASentence(t *testing.T) {
	safe := state{fsync: "on", pages: "on", oldest: longOpen - time.Second}
	if found := safe.unsafe(); len(found) > 0 {
		t.Errorf("a safe server: %q; want no sentence", found)
	}
	for want, s := range map[string]state{
		"fsync is off":              {fsync: "off", pages: "on"},
		"full_page_writes is off":   {fsync: "on", pages: "off"},
		"has been open for 1m0s":    {fsync: "on", pages: "on", oldest: longOpen},
		"2 sessions of other users": {fsync: "on", pages: "on", hidden: 2},
	} {
		if found := s.unsafe(); len(found) != 1 || !strings.Contains(found[0], want) {
			t.Errorf("%+v: %q; want one sentence with %q", s, found, want)
		}
	}
}
