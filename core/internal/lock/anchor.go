package lock

import (
	"time"

	"github.com/interlock-go/interlock/core/internal/clock"
)

// offering has the offers of a lock to this process (offers.go says how they are dealt with).
//
// Invariant: an offer that is pending is above the anchor, and waits for the answer to a try or to
// a release. An offer that is named is not above the anchor, and a try names it, or will: it is for
// a caller that waits for the lock, and this process does not hold the lock.
type offering struct {
	anchor  anchor // the start of the time of an offer
	pending offer  // came while a request was on its way
	named   int64  // the token of the offer that the next try asks for; zero: none
}

// anchor is an instant before which no offer was made that has a greater token.
type anchor struct {
	token int64
	sent  clock.Instant // zero: there is none
	ahead time.Duration // of the wall clock, by then
}

// offer is an offer that came while a request was on its way. The answer to the request
// is handled first.
type offer struct {
	token     int64 // zero: there is none
	contended bool
	room      int64 // for the tokens of hand-offs; zero: without a bound
}

// answered takes the token in a refusal of a request that was sent at an instant.
func (o *offering) answered(token int64, sent clock.Instant, ahead time.Duration) {
	if token > o.pending.token {
		o.pending = offer{} // it has ended
	}
	// If an offer waits for this answer, and was made before it, an earlier anchor is the
	// right one.
	if token != 0 && token >= o.anchor.token && token != o.pending.token {
		o.anchor = anchor{token, sent, ahead}
	}
}
