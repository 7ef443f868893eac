// Package pace gives tests on a server their leases and limits. They are multiples of a
// round trip that the test measures at its start, so that a slow server or a busy machine
// stretches all of them alike. No result of a test may depend on a race of two times: a
// lease that must end can end early, a lease that must not end outlives a machine that
// stands still for seconds.
package pace

import (
	"slices"
	"testing"
	"time"
)

// Pace is how fast a server answers this test.
type Pace struct {
	// RoundTrip is the median of a few round trips: neither the first one, which also
	// connects, nor a moment when the machine stood still must stretch the test.
	RoundTrip time.Duration
}

// tries is the number of round trips that are measured.
const tries = 5

// Of measures a server by a request that changes nothing. The test fails if the request
// fails.
func Of(tb testing.TB, ask func() error) Pace {
	tb.Helper()
	took := make([]time.Duration, tries)
	for i := range took {
		begin := time.Now()
		if err := ask(); err != nil {
			tb.Fatalf("measuring a round trip: %v", err)
		}
		took[i] = time.Since(begin)
	}
	slices.Sort(took)
	return Pace{RoundTrip: took[tries/2]}
}

// Lapses is a lease that has to end during the test: 500 round trips, and at least 250 ms.
// The test must hold however early the lease ends.
func (p Pace) Lapses() time.Duration { return max(500*p.RoundTrip, 250*time.Millisecond) }

// Holds is a lease that must not end during the test: 20,000 round trips, and at least a
// minute.
func (p Pace) Holds() time.Duration { return max(20_000*p.RoundTrip, time.Minute) }

// Patience bounds a poll, and the wait for an event that has to come: 10,000 round trips,
// and at least 30 s. A test that succeeds does not spend it.
func (p Pace) Patience() time.Duration { return max(10_000*p.RoundTrip, 30*time.Second) }
