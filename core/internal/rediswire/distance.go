package rediswire

import "time"

const (
	// maxNear is how many pipelines to a server that is near are under way at most. More
	// would leave with fewer requests each, and cost more system calls, and the replies
	// would be here no earlier.
	maxNear = 2
	// nearTrip is the longest round trip to a server that is near, nearEach what each
	// request of a pipeline adds to it, and tripsEach how many round trips count together:
	// the shortest tells how far the server is.
	nearTrip, nearEach = 150 * time.Microsecond, 15 * time.Microsecond
	tripsEach          = 64
)

// distance tells whether a server is near: on the same machine, or so close that a request
// waits for the next pipeline no longer than a core takes to wake up.
type distance struct {
	near  bool
	trips int
	least time.Duration // of these trips, less what their requests add
}

// trip notes how long a pipeline of so many requests took; zero: it failed.
func (d *distance) trip(took time.Duration, requests int) {
	if took == 0 {
		return
	}
	took -= time.Duration(requests) * nearEach
	if d.trips == 0 || took < d.least {
		d.least = took
	}
	if d.trips++; d.trips == tripsEach {
		d.near, d.trips = d.least < nearTrip, 0
	}
}
