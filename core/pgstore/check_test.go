package pgstore

import (
	"strings"
	"testing"
	"time"
)

func TestEachUnsafeConditionIsASentence(t *testing.T) {
	safe := func() state {
		return state{
			version: 14, fsync: "on", pages: "on", vacuum: "on", counts: "on", activities: "on", oldest: longOpen - time.Second, kept: manyKept - 1,
			sessions: []session{{user: "app", commit: "on", bytes: "hex"}},
		}
	}
	if found := safe().unsafe(); len(found) > 0 {
		t.Errorf("a safe server: %q; want no sentence", found)
	}
	for want, change := range map[string]func(s *state){
		"is PostgreSQL 13":                                 func(s *state) { s.version = 13 },
		"fsync is off":                                     func(s *state) { s.fsync = "off" },
		"full_page_writes is off":                          func(s *state) { s.pages = "off" },
		"empties interlock_lock":                           func(s *state) { s.unlogged = "interlock_lock" },
		"is off for the role app":                          func(s *state) { s.sessions[0].commit = "off" },
		"is off for the role other":                        func(s *state) { s.roles = "other" },
		"synchronous_commit is local":                      func(s *state) { s.sessions[0].commit, s.sessions[0].standbys = "local", true },
		"synchronous_commit is remote_write":               func(s *state) { s.sessions[0].commit, s.sessions[0].standbys = "remote_write", true },
		"the server is a standby":                          func(s *state) { s.sessions[0].reads, s.sessions[0].standby = true, true },
		"(default_transaction_read_only)":                  func(s *state) { s.sessions[0].reads = true },
		"bytea_output is escape":                           func(s *state) { s.sessions[0].bytes = "escape" },
		"security of interlock_record":                     func(s *state) { s.closed = "interlock_record" },
		"has been open for 10s":                            func(s *state) { s.oldest = longOpen },
		"of 10000 transactions":                            func(s *state) { s.kept = manyKept },
		"autovacuum is off":                                func(s *state) { s.vacuum = "off" },
		"track_counts is off":                              func(s *state) { s.counts = "off" },
		"track_activities is off":                          func(s *state) { s.activities = "off" },
		"not known: since when transactions of 2 sessions": func(s *state) { s.hidden = 2 },
	} {
		s := safe()
		change(&s)
		if found := s.unsafe(); len(found) != 1 || !strings.Contains(found[0], want) {
			t.Errorf("%+v: %q; want one sentence with %q", s, found, want)
		}
	}
	two := safe()
	two.sessions = append(two.sessions, two.sessions[0])
	two.sessions[0].commit, two.sessions[1].commit = "off", "off"
	if found := two.unsafe(); len(found) != 1 {
		t.Errorf("two pools of one role: %q; want one sentence", found)
	}
}
