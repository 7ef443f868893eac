package lock

import (
	"context"
	"time"

	"github.com/interlock-go/interlock/core/internal/clock"
)

// A process that is listed leaves the list when its last caller leaves: it would be called in
// vain. The store carries requests out in any order. A request that enters the process
// again must not be followed by an earlier request that takes it out: its caller would wait for
// a call that never comes. So a caller that comes waits for the outcome. If that takes too
// long, the caller asks all the same, and asks again until nothing of the earlier request can
// come any more.

const (
	// declineWait is how long a caller waits at most until the process has left the list.
	declineWait = 100 * time.Millisecond
	// declineWithin is how long the process waits for the outcome.
	declineWithin = time.Second
	// declineLate is how long after that a request without an outcome may be carried out:
	// its connection is closed, and a server that had stopped has gone on.
	declineLate = time.Minute
)

// listing is whether this process is in the store's list of the lockers that wait for the lock, as
// far as is known.
//
// Invariant: leaving is never below zero, and while it is zero, leftAt does not count.
type listing struct {
	in      bool
	leaving int32         // requests that take it out of the list, and may yet be carried out
	leftAt  clock.Instant // when the last of these was sent
}

// declines has the process, which is listed, leave the list of those waiting if no caller waits here any more.
func (l *lock) declines(fx *effects) {
	table := l.shard.table
	if l.waiters.first != nil || l.asking() > 0 || l.phase == releasing || l.places.releasing() {
		return
	}
	l.listing.in = false
	if table.store.turns != nil {
		l.unlists(fx)
	}
}

// unlists has the process leave the list, to a store with [driver.Turns].
func (l *lock) unlists(fx *effects) {
	l.listing.in, fx.sends.decline = false, true
	l.listing.leaving++
	l.listing.leftAt = l.shard.table.Clock.Now()
}

// decline takes the process out of the list of a lock.
func (t *Table) decline(l *lock) {
	ctx, cancel := context.WithTimeout(context.Background(), declineWithin)
	defer cancel()
	over := func() { l.shard.event(l, func(fx *effects) { l.hasLeft(fx) }) }
	if t.store.turns.Decline(ctx, l.key, t.ID) == nil {
		over()
	} else {
		time.AfterFunc(declineLate, over)
	}
}

// hasLeft is the event that a request which takes the process out of the list has been carried
// out, and comes no more.
func (l *lock) hasLeft(fx *effects) {
	if l.listing.leaving--; l.listing.leaving > 0 || l.phase != acquiring {
		return
	}
	if l.asking() == 0 { // else the answer has it ask again
		l.acquisition().next.tryAt = 0
		fx.wakes.look = l.waiters.first
	}
}

// awaitsDecline reports whether a caller waits until the process, which is about to, has left the
// list. A caller that does not wait for the holder does not enter it. A caller that must leave now asks before.
func (l *lock) awaitsDecline(w *Waiter, now, deadline clock.Instant) bool {
	return w.Terms.Wait != 0 && now < l.listing.leftAt.Add(declineWait) && (deadline == 0 || now < deadline)
}

// doubts plans the next try after a request that was refused, and may have been followed by a
// request that takes the process out of the list.
func (l *lock) doubts(now clock.Instant) {
	if l.listing.leaving > 0 {
		l.acq.next.tryAt = min(l.acq.next.tryAt, now.Add(blindWait))
	} else {
		l.acq.next.tryAt = 0
	}
}
