package lock

import (
	"time"

	"github.com/interlock-go/interlock/core/driver"
	"github.com/interlock-go/interlock/core/internal/clock"
)

const (
	// promised is the pause after a release that has put this process at the end of the list: the others were
	// promised the next turn, and ours is called.
	promised = 20 * time.Millisecond
	// answerWait is the least time that a try has for its answer.
	answerWait = time.Second
	// minBackoff and maxBackoff bound the pauses between tries while the store is
	// not ready.
	minBackoff = 10 * time.Millisecond
	maxBackoff = time.Second
	// blindWait is the pause between tries when the holder's TTL is unknown.
	blindWait = time.Second
)

// acquisition is the state of the attempts of a process to get a lock. It is apart from the lock,
// which is held for most of its life. The zero value of each group says that the group does not
// count.
type acquisition struct {
	tries   tries
	refusal refusal
	outage  outage
	next    schedule
	offer   offering
	owner   uint64 // the number of an owner that no request has used up; zero: the next try has a fresh one
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
// Invariant: while contended is false, blind does not count.
type refusal struct {
	contended bool
	full      bool   // the last try found all permits taken
	kept      bool   // it found no holder: the lock is kept for others, for a short time
	blind     bool   // see try
	room      int32  // how many grants have come, or places were given back, since
	holder    string // the owners that stood in the way of the last try
	note      string // the store's answers about that, for waits up to noted
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
	askAt  clock.Instant
	turn   clock.Instant // when to try, as called since the last request was sent; zero: no call came
	others bool          // a call said that others wait as well, for the next request
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
	a.next = schedule{askAt: a.next.askAt}
	a.refusal.full, a.refusal.blind = false, false
	a.offer.pending, a.offer.named = offer{}, 0
}
