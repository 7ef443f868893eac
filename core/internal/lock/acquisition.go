package lock

import (
	"math/rand/v2"
	"strings"
	"time"

	"github.com/interlock-go/interlock/core/driver"
	"github.com/interlock-go/interlock/core/internal/clock"
)

const (
	// grace is how long a waiting process leaves to each process that was named before
	// it in a release: some round trips.
	grace = 5 * time.Millisecond
	// courtesy is a pause after the release of a lock that others wait for: this process
	// does not ask for the lock in it. The first of the others needs some round trips to
	// ask; courtesy is that time, and at least minCourtesy.
	courtesy    = grace / 2
	minCourtesy = grace / 10
	// answerWait is the least time that a try has for its answer.
	answerWait = time.Second
	// minBackoff and maxBackoff bound the pauses between tries while the store is
	// not ready.
	minBackoff = 10 * time.Millisecond
	maxBackoff = time.Second
	// blindWait is the pause between tries when the holder's TTL is unknown.
	blindWait = time.Second
	// fullList is from how many names on a list of waiting lockers counts as full:
	// the lists of the scripts have room for 63 (core/internal/rediswire/lua/places.lua).
	fullList = 60
)

// acquisition is what a lock needs while it is acquired: one try after the other,
// for permits several at the same time. It is apart from the lock, which is held for
// most of its life.
type acquisition struct {
	one  try         // most locks have no other on its way
	kind driver.Kind // of the tries on their way
	// When the last try was sent, and when the last try that was refused was sent.
	asked, refusedAt clock.Instant

	seq   uint64        // of the next owner; zero: a fresh one
	tryAt clock.Instant // when the first waiter may try
	rest  string        // the lockers that wait after us, from the last signal
	// restUntil is when those in rest have had their time and did not come; zero:
	// rest has nothing to wait for.
	restUntil clock.Instant
	signals   int32 // how many signals have come
	heard     int32 // and how many when the last request was sent
	room      int32 // how many grants have come, or places were given back, since the last refusal
	backoff   time.Duration
	failed    error         // why the last try had no answer
	holder    string        // the owners that stood in the way of the last try
	askAt     clock.Instant // when a caller that is not InTurn asks whether it may wait, while the lock is held here
	hinted    clock.Instant // when the store had last something to tell about owners that are not known yet

	anchor anchor // the start of the time of an offer
	offer  offer  // came while a request was on its way
	named  int64  // the offer that the next try asks for

	passed    bool   // tryAt was set by a signal that does not name us
	releases  int32  // a full list left us out: how many releases until we ask
	contended bool   // the last try found another process's lock
	full      bool   // it found all permits taken
	note      string // the store's answers about that, for waits up to noted
	noted     time.Duration
	blind     bool   // see try
	unwatch   func() // ends the watch; nil: there is none
}

// retry lets the first waiter try again after a pause that doubles. Of several tries that
// fail together only the first makes it longer; a request for an offer is always the only one.
func (a *acquisition) retry(now clock.Instant, why error) {
	if a.failed == nil || now >= a.tryAt || a.named != 0 {
		a.backoff = min(max(2*a.backoff, minBackoff), maxBackoff)
		a.tryAt = now.Add(a.backoff)
	}
	a.failed = why
}

// got plans the next try after a grant, for the waiters that are left.
func (a *acquisition) got() {
	a.room++
	a.tryAt, a.failed, a.backoff = 0, nil, 0
	a.passed, a.releases, a.restUntil, a.full, a.blind = false, 0, 0, false, false
	a.offer, a.named = offer{}, 0
	a.contended = a.contended || a.unwatch != nil
}

// plan plans the next try after a release was announced with a list of waiting
// lockers, and says whether a try is on its way. The first that is named tries at
// once; the others leave each before them some time, so that a release does not
// cost a try of every process.
func (a *acquisition) plan(now clock.Instant, s driver.Signal, id string, kind driver.Kind, asking bool) {
	turn := turnIn(s.Next, id, kind)
	if s.Now != 0 && s.Next != "" && !mayHave(s, id) {
		return // the places that became free are others'
	}
	if a.named != 0 && !asking {
		// The lock is kept for this process. The announcement may be of an earlier release, and
		// puts off no request for the offer.
		defer func(before clock.Instant) { a.tryAt = min(a.tryAt, before) }(a.tryAt)
	}
	a.signals++
	a.rest, a.restUntil = turn.rest, 0
	switch next := now.Add(turn.begins); {
	case !turn.named && turn.before >= fullList:
		a.leftOut(now, next, s.Next, turn.before, asking)
	case turn.named:
		a.tryAt = next
	default:
		// It has lost its place in the list, or had none yet, and asks for one soon. Every
		// release of a busy key would put it off if each began that pause anew.
		if next = now.Add(grace); !a.passed || next < a.tryAt {
			a.tryAt = next
		}
		if kind == driver.Exclusive {
			a.overtake(next, s.Next)
		}
	}
	a.passed = !turn.named
}

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
// the list have left.
func (a *acquisition) leftOut(now, over clock.Instant, list string, n int, asking bool) {
	if a.releases == 0 {
		a.releases = 1 + rand.Int32N(2*int32(n))
		next := over.Add(rand.N(blindWait))
		if !a.passed || asking || next < a.tryAt {
			a.tryAt = next
		}
	}
	if a.releases--; a.releases == 0 {
		a.tryAt = now
	}
	a.overtake(over, list)
}

// giveWay plans the first try after a release of this process, which took a round trip
// and called the waiting lockers. They are unknown if their list is empty.
func (a *acquisition) giveWay(now clock.Instant, trip time.Duration, waiting string) {
	// A signal that comes meanwhile and does not name us must not put us off: we are not
	// in the list until we ask.
	a.tryAt, a.passed = now.Add(min(max(4*trip, minCourtesy), courtesy)), true
	if waiting != "" {
		a.overtake(now.Add(turnIn(waiting, "", driver.Exclusive).begins), waiting)
	}
}

// overtake keeps a list of waiting lockers for the case that this locker, which is not in
// the list, gets the lock before they have had their time, at the instant over: they must
// not lose their places. The first loses its place, and gets one again when it asks, so that
// names of lockers that have left do not stay for ever.
func (a *acquisition) overtake(over clock.Instant, list string) {
	_, a.rest, _ = strings.Cut(list, ",")
	a.restUntil = over
}

// turn is when a locker may try that waits with others.
type turn struct {
	named  bool          // it is in the list
	before int           // so many turns come before its own
	begins time.Duration // as long as the lockers before it may take
	rest   string        // the list without the lockers that have been passed over
}

// turnIn finds the turn of a locker in a list. A locker that is not in it comes after all
// of them. An empty list says nothing about any locker.
//
// Lockers that want places, and stand together, have one turn. So a locker that wants a
// place passes over no other.
//
// No turn begins later than the store keeps the lock: processes at the head of the list that
// have died do not add up.
func turnIn(list, id string, kind driver.Kind) (t turn) {
	if list == "" {
		return turn{named: true}
	}
	together := time.Duration(-1) // the patience of the places right before, if there are any
	kept := reserved(list)
	t.rest = list
	for n := 0; t.rest != ""; n++ {
		var entry string
		entry, t.rest, _ = strings.Cut(t.rest, ",")
		name, patience := driver.CutPatience(entry)
		if kept && n >= driver.KeptFor {
			patience = 0
		}
		if t.before == 0 && driver.TakesOffers(entry) {
			patience = max(patience, driver.OfferLasts) // it has been offered the lock
		}
		name, place := strings.CutPrefix(name, "+")
		if name == id {
			if place && together >= 0 {
				t.before--
				t.begins -= together
			}
			if kind.Place() {
				t.rest = without(list, id)
			}
			t.named = true
			return t
		}
		if place && together >= 0 {
			patience = max(patience-together, 0) // they go together: the longest counts
			together += patience
		} else {
			t.before++
			together = patience
		}
		t.begins += patience
		if !place {
			together = -1
		}
	}
	return t
}

// farthest returns the greatest patience in a list.
func farthest(list string) (most time.Duration) {
	for entry := range strings.SplitSeq(list, ",") {
		_, patience := driver.CutPatience(entry)
		most = max(most, patience)
	}
	return most
}

// reserved reports whether the store keeps the lock for the first of a list that a release
// has called.
func reserved(list string) bool {
	first, _, _ := strings.Cut(list, ",")
	return strings.Contains(first, "~")
}

// without returns a list of waiting lockers minus a name.
func without(list, id string) string {
	var left []string
	for entry := range strings.SplitSeq(list, ",") {
		if name, _ := driver.CutPatience(entry); strings.TrimPrefix(name, "+") != id {
			left = append(left, entry)
		}
	}
	return strings.Join(left, ",")
}

// mayHave reports whether a place that became free is for this locker: it is among the
// first of the list, and all of these want places.
func mayHave(s driver.Signal, id string) bool {
	left := s.Now
	for entry := range strings.SplitSeq(s.Next, ",") {
		name, _ := driver.CutPatience(entry)
		name, place := strings.CutPrefix(name, "+")
		if !place || left == 0 {
			return false
		}
		if name == id {
			return true
		}
		left--
	}
	return false
}
