package casstore

import "time"

// SetClock gives a store, before its first use, another clock.
func SetClock(s *Store, now func() time.Time) { s.now = now }
