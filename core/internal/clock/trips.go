package clock

import (
	"sync/atomic"
	"time"
)

// window is how many round trips are compared.
const window = 32

// Trips has the shortest of the last 32 to 64 round trips. A mean would include the time
// to make a connection, and delays by a busy server or process. The zero value is ready.
// It is safe for concurrent use, and a trip that is left out by chance makes no
// difference.
type Trips struct {
	now, before atomic.Int64 // the shortest of this window and of the one before; zero: none
	n           atomic.Uint32
}

// Note notes a round trip.
func (t *Trips) Note(trip time.Duration) {
	if least := t.now.Load(); least == 0 || int64(trip) < least {
		t.now.Store(max(1, int64(trip)))
	}
	if t.n.Add(1)%window == 0 {
		t.before.Store(t.now.Swap(0))
	}
}

// Least returns the shortest round trip; zero if none was noted.
func (t *Trips) Least() time.Duration {
	now, before := t.now.Load(), t.before.Load()
	if now == 0 || before != 0 && before < now {
		now = before
	}
	return time.Duration(now)
}
