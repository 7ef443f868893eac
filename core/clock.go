package core

import (
	"math"
	"time"
)

// instant is a moment on the monotonic clock, in nanoseconds since its locker
// was made: a third of a time.Time, and there are many for each lock. Zero is
// none.
type instant int64

// never is after all other instants.
const never instant = math.MaxInt64

func (i instant) add(d time.Duration) instant {
	sum := i + instant(d)
	if d > 0 && sum < i {
		return never
	}
	return sum
}

func (i instant) sub(j instant) time.Duration { return time.Duration(i - j) }

// clock counts instants.
type clock struct {
	epoch time.Time // of both clocks
	wall  time.Time // the same, of the wall clock alone

	// played replaces the wall clock in tests; nil is the system's.
	played func() time.Time
}

func newClock() clock {
	epoch := time.Now().Add(-1) // so that no instant to come is zero
	return clock{epoch: epoch, wall: epoch.Round(0)}
}

func (c *clock) now() instant { return instant(time.Since(c.epoch)) }

// read returns the time, and how far the wall clock has run ahead of the
// monotonic one since the epoch: that one may stand still while the machine
// sleeps.
func (c *clock) read() (now instant, ahead time.Duration) {
	t := time.Now()
	now = c.of(t)
	if c.played != nil {
		t = c.played()
	}
	return now, c.ahead(t, now)
}

func (c *clock) ahead(t time.Time, i instant) time.Duration {
	return t.Round(0).Sub(c.wall) - time.Duration(i)
}

// of is the instant of a time; that of the zero time is before all others.
func (c *clock) of(t time.Time) instant { return instant(t.Sub(c.epoch)) }

// time is the time of an instant; that of none is the zero time.
func (c *clock) time(i instant) time.Time {
	if i == 0 {
		return time.Time{}
	}
	return c.epoch.Add(time.Duration(i))
}
