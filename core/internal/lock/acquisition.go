package lock

import (
	"math/rand/v2"
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

// acquisition is the state of the attempts of a process to get a lock. It is apart from the lock,
// which is held for most of its life. The zero value of each group says that the group does not
// count.
type acquisition struct {
	tries   tries
	refusal refusal
	outage  outage
	next    schedule
	signals signals
	offer   offering
	owner   uint64 // the number of an owner that no request has used up; zero: the next try has a fresh one
	unwatch func() // ends the watch; nil: there is none
}

// tries are the tries on their way: one after the other, for permits several at the same time.
//
// Invariant: n counts the tries of waiters, which have the mark asking, and the strays. If n is
// more than one, all are for permits. While n is zero, no other field counts.
type tries struct {
	n      int32
	strays int32         // of these, how many have lost the waiter that sent them
	kind   driver.Kind   // of all
	asked  clock.Instant // when the last one was sent
	hinted clock.Instant // when the store had last something to tell about owners that are not known yet
	one    try           // the memory of one: most locks have no other on its way
}

// refusal says that others have the lock: the last try was refused, or a release promised the
// next turn to others.
//
// Invariant: while contended is false, at and blind do not count.
type refusal struct {
	contended bool
	full      bool          // the last try found all permits taken
	blind     bool          // see try
	room      int32         // how many grants have come, or places were given back, since
	at        clock.Instant // when the try, or the release, was sent
	holder    string        // the owners that stood in the way of the last try
	note      string        // the store's answers about that, for waits up to noted
	noted     time.Duration
}

// outage says that the last try had no answer.
//
// Invariant: why is not nil only together with a backoff. The backoff stays until the store
// answers.
type outage struct {
	why     error
	backoff time.Duration // the last pause
}

// schedule is when the next requests go. An instant of zero is at once.
type schedule struct {
	tryAt clock.Instant // when the first waiter may try
	// askAt is when a caller that is not InTurn asks whether it may wait, while the lock is held here.
	askAt    clock.Instant
	passed   bool  // tryAt was set by a signal that does not name us
	releases int32 // a full list left us out: how many releases until we ask; zero: none left us out
}

// signals are the announced releases.
type signals struct {
	n      int32          // how many have come
	heard  int32          // and how many when the last request was sent
	behind driver.Waiters // the lockers that wait after this one, from the last signal
}

// retry lets the first waiter try again after a pause that doubles. Of several tries that
// fail together only the first makes it longer; a request for an offer is always the only one.
func (a *acquisition) retry(now clock.Instant, why error) {
	if a.outage.why == nil || now >= a.next.tryAt || a.offer.named != 0 {
		a.outage.backoff = min(max(2*a.outage.backoff, minBackoff), maxBackoff)
		a.next.tryAt = now.Add(a.outage.backoff)
	}
	a.outage.why = why
}

// got plans the next try after a grant, for the waiters that are left.
func (a *acquisition) got() {
	a.refusal.room++
	a.outage = outage{}
	a.next.tryAt, a.next.passed, a.next.releases = 0, false, 0
	a.refusal.full, a.refusal.blind = false, false
	a.offer.pending, a.offer.named = offer{}, 0
	a.refusal.contended = a.refusal.contended || a.unwatch != nil
}

// plan plans the next try after a release was announced with a list of waiting
// lockers. The first that is named tries at
// once; the others leave each before them some time, so that a release does not
// cost a try of every process.
func (a *acquisition) plan(now clock.Instant, s driver.Signal, id string) {
	turn, asking := turnIn(s.Next, id), a.tries.n > 0
	if s.Now != 0 && s.Next != "" && !mayHave(s, id) {
		return // the places that became free are others'
	}
	if a.offer.named != 0 && !asking {
		// The lock is kept for this process. The announcement may be of an earlier release, and
		// puts off no request for the offer.
		defer func(before clock.Instant) { a.next.tryAt = min(a.next.tryAt, before) }(a.next.tryAt)
	}
	a.signals.n++
	a.signals.behind = turn.behind
	switch next := now.Add(turn.begins); {
	case !turn.named && turn.before >= fullList:
		a.leftOut(now, next, turn.before)
	case turn.named:
		a.next.tryAt = next
	default:
		// It has lost its place in the list, or had none yet, and asks for one soon. Every
		// release of a busy key would put it off if each began that pause anew.
		if next = now.Add(grace); !a.next.passed || next < a.next.tryAt {
			a.next.tryAt = next
		}
	}
	a.next.passed = !turn.named
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
func (a *acquisition) leftOut(now, over clock.Instant, n int) {
	if a.next.releases == 0 {
		a.next.releases = 1 + rand.Int32N(2*int32(n))
		next := over.Add(rand.N(blindWait))
		if !a.next.passed || a.tries.n > 0 || next < a.next.tryAt {
			a.next.tryAt = next
		}
	}
	if a.next.releases--; a.next.releases == 0 {
		a.next.tryAt = now
	}
}

// giveWay plans the first try after a release of this process, which took a round trip
// and called the waiting lockers.
func (a *acquisition) giveWay(now clock.Instant, trip time.Duration, waiting driver.Waiters) {
	// A signal that comes meanwhile and does not name us must not put us off: we are not
	// in the list until we ask.
	a.next.tryAt, a.next.passed = now.Add(min(max(4*trip, minCourtesy), courtesy)), true
	a.signals.behind = waiting
}
