package core

import (
	"math/rand/v2"
	"strings"

	"github.com/interlock-go/interlock/core/internal/clock"
)

// fullList is from how many names on a list of waiting lockers counts as full: the
// lists of package redisstore have room for 63.
const fullList = 60

// leftOut plans the next try of a locker that a full list of n names leaves out.
// Those in the list have had their time at the instant over.
//
// Each release takes one name off a full list, and the releasing locker does not get
// into it, so there is about one free place in each turn. Each locker that was left
// out asks for it after a random number of releases, n on average. So each has the
// same chance, however long the turns are, and the server gets about one try a turn
// for each n lockers that were left out. With a fixed pause all of them would ask at
// the same instant, and the same of them would always be the first.
//
// It asks after a random time as well: no release comes any more when all lockers in
// the list have left. Called with the shard locked.
func (e *entry) leftOut(now, over clock.Instant, list string, n int) {
	try := e.try
	if try.releases == 0 {
		try.releases = 1 + rand.Int32N(2*int32(n))
		next := over.Add(rand.N(blindWait))
		if !try.passed || e.flight == acquiring || next < try.next {
			try.next = next
		}
	}
	if try.releases--; try.releases == 0 {
		try.next = now
	}
	// Should this locker get the lock before those in the list have had their time,
	// the others must not lose their places. The first of the list loses its place,
	// so that names of lockers that have left do not stay for ever.
	_, try.rest, _ = strings.Cut(list, ",")
	try.restUntil = over
}
