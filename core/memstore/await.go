package memstore

import (
	"slices"
	"time"

	"github.com/interlock-go/interlock/core/idempotency/record"
)

// awaiting is a request that waits for the end of a claim.
type awaiting struct{ wake func() }

// Await implements [record.Store].
func (s *Store) Await(id string, since time.Time, wake func()) (stop func()) {
	return s.own.subscribe(func(reached bool) (end func()) {
		if !reached {
			return func() {}
		}
		return s.await(id, since, wake)
	})
}

func (s *Store) await(id string, since time.Time, wake func()) (stop func()) {
	a := &awaiting{func() { s.own.notify(wake) }}
	s.mu.Lock()
	s.records.awaiting[id] = append(s.records.awaiting[id], a)
	e := s.entry(id, s.now())
	missed := e == nil || e.state != record.StateInFlight || e.damaged || e.changed.After(since)
	s.mu.Unlock()
	if missed {
		wake()
	}
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		left := slices.DeleteFunc(s.records.awaiting[id], func(other *awaiting) bool { return other == a })
		if s.records.awaiting[id] = left; len(left) == 0 {
			delete(s.records.awaiting, id)
		}
	}
}

// announcing returns what wakes the requests that wait for a record. The caller holds
// s.mu, and calls it after it has given s.mu back.
func (s *Store) announcing(ids ...string) func() {
	var all []*awaiting
	for _, id := range ids {
		all = append(all, s.records.awaiting[id]...)
	}
	return func() {
		for _, a := range all {
			a.wake()
		}
	}
}
