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
	if way := s.watches.way(); way > 0 {
		return max(way, trip)
	}
	return trip + longestPause(trip)/3
}

// Decline implements [driver.Turns].
func (s *Store) Decline(ctx context.Context, key, waiter string) error {
	if checkTexts(waiter) != nil {
		return nil // it is in no list
	}
	told := func(r *request) {
		if r.err == nil && r.answer.list != "" {
			s.watches.released(key, r.answer)
		}
	}
	r := &request{
		store: s, lane: &s.requests, kind: declines, once: true, deadline: time.Now().Add(s.set.Timeout), key: key, waiter: waiter,
		done: make(chan *request, 1),
	}
	r.late = func() { told(r) }
	r.by(func(rec *keystate.Record, now time.Time, _ *ruling) keystate.Notices { return rec.Decline(waiter, now) })
	r.send()
	if !r.wait(ctx, time.Time{}) {
		return errNoAnswer
	}
	told(r)
	if r.ambiguous {
		return errNoAnswer
	}
	return nil
}

// Stand implements [driver.Turns].
func (s *Store) Stand(ctx context.Context, ask driver.AcquireRequest) (driver.Reply, error) {
	return s.ask(ctx, &request{kind: records}, ask, func(rec *keystate.Record, now time.Time, v *ruling) (n keystate.Notices) {
		v.rep, n = rec.Stand(ask, now)
		return n
	})
}

// Offers implements [driver.Turns]: there are none.
func (s *Store) Offers(string, func(bool), func(driver.Offer)) (stop func()) { return nil }

// Space implements [driver.Turns]. It leaves out the schema of the table: another store finds the same
// table by its search_path. Nor does it say anything about the server.
func (s *Store) Space() string {
	return "postgresql " + s.set.Table[strings.LastIndexByte(s.set.Table, '.')+1:]
}

// callsAfter is how many µs after a release the announcement reaches the server at the
// earliest: the answer to the release comes before it. Lockers that look are not called.
func (s *Store) callsAfter() int64 {
	if s.set.Listen == nil {
		return 0
	}
	return s.trips.Least().Microseconds()
}

// longestPause is how long a locker that looks may take to look, where a look takes so long.
func longestPause(trip time.Duration) time.Duration { return max(lookLatest, lookShare*trip) }
