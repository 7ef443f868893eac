package pglock

import (
	"context"
	"strings"
	"time"

	"github.com/interlock-go/interlock/core/driver"
	"github.com/interlock-go/interlock/core/driver/keystate"
)

var _ driver.Turns = (*Store)(nil)

// RoundTrip implements [driver.Turns]. An announcement takes longer than a request and its
// reply: the server commits it first. Where none is heard, a third of the longest pause
// between two looks is added, since patience is for three round trips.
func (s *Store) RoundTrip() time.Duration {
	trip := s.trips.Least()
	if way := s.calls.way(); way > 0 {
		return max(way, trip)
	}
	return trip + longestPause(trip)/3
}

// Decline implements [driver.Turns].
func (s *Store) Decline(ctx context.Context, key, waiter string) error {
	if checkTexts(waiter) != nil {
		return nil // it is in no list
	}
	s.calls.left(key, waiter)
	r := &request{
		store: s, lane: &s.requests, once: true, deadline: time.Now().Add(s.set.Timeout), key: key, done: make(chan *request, 1),
		rule: func(rec *keystate.Record, at moment, _ *ruling) keystate.Notices { return rec.Decline(waiter, at.now) },
	}
	r.send()
	if !r.wait(ctx, time.Time{}) || r.ambiguous {
		return errNoAnswer
	}
	return nil
}

// Stand implements [driver.Turns].
func (s *Store) Stand(ctx context.Context, ask driver.AcquireRequest) (driver.Reply, error) {
	return s.ask(ctx, ask, func(rec *keystate.Record, at moment, v *ruling) (n keystate.Notices) {
		v.rep, n = rec.Stand(ask, at.now)
		return n
	})
}

// Space implements [driver.Turns]. It leaves out the schema of the table: another store finds the same
// table by its search_path. Nor does it say anything about the server.
func (s *Store) Space() string {
	return "postgresql " + s.set.Table[strings.LastIndexByte(s.set.Table, '.')+1:]
}

// callsAfter is how long after the instant for which a release is decided its lockers can learn of it, at the
// earliest: the statement has to reach the server, and an announcement follows its answer.
func (s *Store) callsAfter() time.Duration {
	trip := s.trips.Least()
	if s.set.Listen == nil {
		return trip + time.Millisecond
	}
	return 2*trip + time.Millisecond
}

// longestPause is how long a locker that looks may take to look, where a look takes so long.
func longestPause(trip time.Duration) time.Duration { return max(lookLatest, lookShare*trip) }
