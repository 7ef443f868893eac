package casstore

import "time"

// SetClock gives a store, before its first use, a clock of its own.
func SetClock(s *Store, now func() time.Time) { s.now = now }
