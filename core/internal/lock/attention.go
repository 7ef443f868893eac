package lock

import (
	"github.com/interlock-go/interlock/core/driver"
	"github.com/interlock-go/interlock/core/internal/clock"
)

// The store tells a Table what happens to the locks of attentive owners, if it can. That is
// a hint, which may be lost, late, repeated or forged. All that follows from it is a renewal
// at once, or a look at a fixed lease: the answer says whether others wait, or that the lock
// was released. So a hint by itself ends nothing, and a hint that was lost is made good by the
// next renewal.

// attentive marks the number of an owner about which the store is to tell.
const attentive uint64 = 1 << 63

// mark is what an attentive caller's owner is marked with: attentive if the store can tell
// about owners, else zero.
func (t *Table) mark() uint64 {
	if t.store.turns != nil {
		return attentive
	}
	return 0
}

// hinted is the event of a notification from the store about an owner, or about all if
// owner is empty. It appends the ownerships to query to all. An owner that is not known
// may be the owner of a try which is on its way: its grant is looked at.
func (l *lock) hinted(owner string, now clock.Instant, all []*ownership, fx *effects) []*ownership {
	n := len(all)
	is := func(own *ownership) {
		if own.seq&attentive != 0 && (owner == "" || own.owner() == owner) {
			all = append(all, own)
		}
	}
	if l.own != nil {
		is(l.own)
	}
	for _, own := range l.places.held() {
		is(own)
	}
	if l.asking() > 0 && (owner == "" || len(all) == n) {
		l.acq.tries.hinted = now
	}
	if w := l.waiters.first; w != nil && w.Terms.Line != driver.InTurn && l.acq != nil {
		// A newer caller may have come.
		l.acq.next.askAt, fx.wakes.look = 0, w
		if l.asking() == 0 {
			l.acq.next.tryAt = 0
		}
	}
	return all
}

// hinted is the event that the lock is to be looked at. Where a renewal is on its way, that
// may have been carried out before: another one follows.
func (own *ownership) hinted(now clock.Instant, fx *effects) {
	if own.over || own.stopped {
		return
	}
	own.renew.hint, fx.schedule = now, own
}

// Heed has [Holder.Wanted] called when another process or a caller of this process waits; at
// once, if one waits already. No callback follows the release.
func (t *Table) Heed(w *Waiter) {
	w.lock.shard.event(w.lock, func(fx *effects) {
		if w.state != granted || w.err != nil {
			return
		}
		w.marks |= heeds
		if w.own.turn.contended {
			w.own.wanted(fx)
		} else if w.lock.waiters.first != nil {
			w.lock.wanted(fx)
		}
	})
}

// wanted has the holders of this process told that callers of this process wait. Callers that
// want places may get them, unless the store has said otherwise.
func (l *lock) wanted(fx *effects) {
	switch {
	case l.phase == held:
		l.own.wanted(fx)
	case l.acq != nil && l.acq.refusal.contended:
		for _, own := range l.places.held() {
			own.wanted(fx)
		}
	}
}

// wanted has the holders that asked for it told that others wait.
func (own *ownership) wanted(fx *effects) {
	for w := own.holder; w != nil; w = w.next {
		if w.marks&heeds != 0 && w.err == nil {
			w.marks &^= heeds
			fx.calls.wanted = append(fx.calls.wanted, w)
		}
	}
}
