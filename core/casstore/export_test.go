package casstore

import "time"

// SetClock gives a store, before its first use, another clock.
func SetClock(s *Store, now func() time.Time) { s.now = now }

// Remembers counts what a store remembers of keys and of owners.
func Remembers(s *Store) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.holds) + len(s.passes) + len(s.seen.locks) + len(s.queues) + len(s.beatWatches) + len(s.calls) + len(s.leavers)
}
