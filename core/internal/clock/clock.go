// Package clock counts time on the monotonic clock, in numbers that are small enough
// to have several for each lock, compares that clock with the wall clock, and measures how far a
// server is ([Trips]).
package clock

import (
	"math"
	"sync/atomic"
	"time"
)

// Instant is a moment on the monotonic clock, in nanoseconds since its [Clock] was
// made. It takes a third of the room of a time.Time. Zero means no instant.
type Instant int64

// Never is after all other instants.
const Never Instant = math.MaxInt64

// Add returns the instant d later, at most [Never].
func (i Instant) Add(d time.Duration) Instant {
	sum := i + Instant(d)
	if d > 0 && sum < i {
		return Never
	}
	return sum
}

// Sub returns the time from j to i.
func (i Instant) Sub(j Instant) time.Duration { return time.Duration(i - j) }

// Clock counts instants. [New] makes one.
type Clock struct {
	epoch time.Time // of both clocks
	wall  int64     // the same, of the wall clock alone, in ns since 1970

	// Played replaces the wall clock in tests. If it is nil, the clock is the
	// system's.
	Played func() time.Time
}

// New returns a clock that begins now.
func New() Clock {
	epoch := time.Now().Add(-1) // so that no later instant is zero
	return Clock{epoch: epoch, wall: epoch.UnixNano()}
}

// Now returns the present instant.
func (c *Clock) Now() Instant { return Instant(time.Since(c.epoch)) }

// Read returns the present instant, and how far the wall clock has run ahead of the
// monotonic clock since the clock was made. While a machine sleeps, the monotonic
// clock may stand still and the wall clock goes on.
func (c *Clock) Read() (now Instant, ahead time.Duration) {
	now, ahead = c.At(time.Now())
	if c.Played != nil {
		ahead = time.Duration(c.Played().UnixNano() - c.wall - int64(now))
	}
	return now, ahead
}

// At returns the instant of a time, and how far the wall clock had run ahead by then.
func (c *Clock) At(t time.Time) (i Instant, ahead time.Duration) {
	i = Instant(t.Sub(c.epoch))
	return i, time.Duration(t.UnixNano() - c.wall - int64(i)) // not by [time.Time.Sub], which every hand-off would pay for
}

// Of returns the instant of a time. The instant of the zero time is before all
// others.
func (c *Clock) Of(t time.Time) Instant { return Instant(t.Sub(c.epoch)) }

// Time returns the time of an instant; for no instant it is the zero time.
func (c *Clock) Time(i Instant) time.Time {
	if i == 0 {
		return time.Time{}
	}
	return c.epoch.Add(time.Duration(i))
}

// Drift returns by how much a client shortens a lease, because two clocks do not run
// at the same rate: 1 % of the lease and 2 ms (Redlock, "Is the algorithm
// asynchronous?"; the figures are from its reference implementations).
func Drift(lease time.Duration) time.Duration {
	return lease/100 + 2*time.Millisecond
}

// Ceil counts the units that contain a duration. It rounds up: in a store a lease is never shorter than its holder
// thinks.
func Ceil(d, unit time.Duration) int64 {
	n := int64(d / unit)
	if d%unit > 0 {
		n++
	}
	return n
}

// window is the number of round trips that are compared.
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
