package rediswire

import (
	"sync/atomic"
	"time"
)

// tripWindow is how many round trips are compared.
const tripWindow = 32

// trips has the shortest of the last round trips. A mean would have the time in which a
// connection was made, and a server or a process that was busy. The zero value is ready. It
// is safe for concurrent use, and a trip that is left out by chance makes no difference.
type trips struct {
	now, before atomic.Int64 // the shortest of this window and of the one before; zero: none
	n           atomic.Uint32
}

func (t *trips) note(trip time.Duration) {
	if least := t.now.Load(); least == 0 || int64(trip) < least {
		t.now.Store(max(1, int64(trip)))
	}
	if t.n.Add(1)%tripWindow == 0 {
		t.before.Store(t.now.Swap(0))
	}
}

// RoundTrip implements [driver.Ranger].
func (s *Store) RoundTrip() time.Duration {
	least, before := s.trips.now.Load(), s.trips.before.Load()
	if least == 0 || before != 0 && before < least {
		least = before
	}
	return time.Duration(least)
}
