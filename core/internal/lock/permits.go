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
	if l.phase != acquiring || l.asking == 0 || l.strays != 0 || l.declining > 0 ||
		acq.kind != driver.Permit || acq.tryAt != 0 || acq.failed != nil ||
		l.asking >= acq.window() {
		return nil
	}
	w := l.firstSilent()
	if w == nil || w.Terms.Kind != driver.Permit || int(l.asking)+len(l.places.held()) >= w.Terms.AtMost || l.awaitsRelease(w) {
		return nil
	}
	return w
}

// window is how many tries for permits may be on their way at once.
func (a *acquisition) window() int32 {
	if a.contended {
		return min(max(1, a.room), mostTries)
	}
	return mostTries
}

// firstSilent returns the first waiter without a try on its way.
func (l *lock) firstSilent() *Waiter {
	if l.n <= l.asking-l.strays {
		return nil
	}
	w := l.first
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
	return w.marks&refused != 0 && w.marks&blind != 0 || l.acq.blind && l.acq.contended
}

// mayTryNext reports whether a caller that does not wait may stand in the queue until
// the try of the callers before it is answered: they want places, too, and have not
// been refused one by another holder.
func (l *lock) mayTryNext(w *Waiter, now clock.Instant) bool {
	acq := l.acq
	return w.Terms.Kind.Place() && l.phase == acquiring && l.first != nil && l.last().Terms.Kind.Place() &&
		(acq == nil || acq.tryAt <= now || acq.failed != nil || acq.blind && l.places.releasing())
}

// refusedNow reports whether the first waiter, which does not wait for the holders, was
// refused already, by the answer to the waiter before it.
func (l *lock) refusedNow(w *Waiter, now clock.Instant) bool {
	return w.Terms.Kind.Place() && l.acq != nil && l.acq.contended && l.acq.failed == nil && now < l.acq.tryAt
}

// failSurplus refuses callers after the first, since the store has said that there is a
// holder: callers that do not wait, and callers with as many waiters before them as their
// MaxWaiters allows. Callers that ask for themselves get separate answers, and are
// waiters only after these.
func (l *lock) failSurplus(fx *effects) {
	if !l.surplus {
		return
	}
	l.surplus = l.asking > 0
	before := 0
	var next *Waiter
	for w := l.first; w != nil; w = next {
		next = w.next
		var err error
		switch most := w.Terms.MaxWaiters; {
		case w.marks&asking != 0:
			continue
		case w == l.first:
		case w.Terms.Wait == 0 && !l.acq.blind && l.acq.failed == nil:
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
		l.remove(w)
		w.marks |= waited
		w.fail(err)
		w.next, fx.failed = fx.failed, w
	}
}
