package lock

import (
	"github.com/interlock-go/interlock/core/driver"
	"github.com/interlock-go/interlock/core/internal/clock"
)

// Callers of one process that want permits ask for them at the same time, each with a
// separate owner. Otherwise a process would get one permit in a round trip, however many
// are free. The store carries out several such requests in one call. Their answers are the
// senders' own, in any order: granted, refused, failed or unknown.
//
// The number of requests on their way is limited by the last answers. After a refusal one
// caller asks, and then as many as there were grants since, so that a process that waits
// for few places does not ask for many. For a permit that this process has already no
// caller asks.

// mostTries is how many tries for permits of one key are on their way at once at the most.
const mostTries = 64

// nextToAsk returns the waiter that may ask for a permit while other tries for permits
// are on their way; nil if there is none. Only an event changes that, not time: while the
// acquisition has planned its next try, no other one goes, nor while a request is on its way that
// takes the process out of the list.
func (l *lock) nextToAsk() *Waiter {
	acq := l.acq
	if l.phase != acquiring || l.asking() == 0 || l.acq.tries.strays != 0 || l.listing.leaving > 0 ||
		acq.tries.kind != driver.Permit || acq.next.tryAt != 0 || acq.outage.why != nil ||
		l.asking() >= acq.window() {
		return nil
	}
	w := l.firstSilent()
	if w == nil || w.Terms.Kind != driver.Permit || int(l.asking())+len(l.places.held()) >= w.Terms.AtMost || l.awaitsRelease(w) {
		return nil
	}
	return w
}

// window is how many tries for permits may be on their way at once.
func (a *acquisition) window() int32 {
	if a.refusal.contended {
		return min(max(1, a.refusal.room), mostTries)
	}
	return mostTries
}

// firstSilent returns the first waiter without a try on its way.
func (l *lock) firstSilent() *Waiter {
	if l.acq != nil && l.waiters.n <= l.acq.tries.n-l.acq.tries.strays {
		return nil
	}
	w := l.waiters.first
	for w != nil && w.marks&asking != 0 {
		w = w.next // at most as often as tries are on their way
	}
	return w
}

// awaitsRelease reports whether a caller that does not wait for other holders was refused
// by a place, it may be, that this process is giving back.
func (l *lock) awaitsRelease(w *Waiter) bool {
	if w.Terms.Wait != 0 || l.acq == nil || !l.places.releasing() {
		return false
	}
	return w.marks&refused != 0 && w.marks&blind != 0 || l.acq.refusal.blind && l.acq.refusal.contended
}

// mayTryNext reports whether a caller that does not wait may stand in the queue until
// the try of the callers before it is answered: they want places, too, and have not
// been refused one by another holder.
func (l *lock) mayTryNext(w *Waiter, now clock.Instant) bool {
	acq := l.acq
	return w.Terms.Kind.Place() && l.phase == acquiring && l.waiters.first != nil && l.waiters.last().Terms.Kind.Place() &&
		(acq == nil || acq.next.tryAt <= now || acq.outage.why != nil || acq.refusal.blind && l.places.releasing())
}

// refusedNow reports whether the first waiter, which does not wait for the holders, was
// refused already, by the answer to the waiter before it.
func (l *lock) refusedNow(w *Waiter, now clock.Instant) bool {
	return w.Terms.Kind.Place() && l.acq != nil && l.acq.refusal.contended && !l.acq.refusal.kept && l.acq.outage.why == nil && now < l.acq.next.tryAt
}

// failSurplus refuses callers after the first, since the store has said that there is a
// holder: callers that do not wait, and callers with as many waiters before them as their
// MaxWaiters allows. Callers that ask for themselves get separate answers, and are
// waiters only after these.
func (l *lock) failSurplus(fx *effects) {
	if !l.surplus {
		return
	}
	l.surplus = l.asking() > 0
	before := 0
	var next *Waiter
	for w := l.waiters.first; w != nil; w = next {
		next = w.next
		var err error
		switch most := w.Terms.MaxWaiters; {
		case w.marks&asking != 0:
			continue
		case w == l.waiters.first:
		case w.Terms.Wait == 0 && !l.acq.refusal.blind && l.acq.outage.why == nil:
			err = l.isHeld(w)
		case most > 0 && before >= most:
			err = queueFull(w)
		}
		if err == nil {
			// There will never be more before it, so a later refusal need not look at it.
			before++
			l.surplus = l.surplus || w.Terms.Wait == 0
			continue
		}
		l.waiters.remove(w)
		w.marks |= waited
		w.fail(err)
		w.next, fx.wakes.failed = fx.wakes.failed, w
	}
}
