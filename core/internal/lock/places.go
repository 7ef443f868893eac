package lock

import (
	"slices"
	"time"

	"github.com/interlock-go/interlock/core/driver"
	"github.com/interlock-go/interlock/core/internal/clock"
)

// minQuestion is the least time after which the watchdog asks whether an exclusive
// caller of another process waits for those who share a lock here.
const minQuestion = 10 * time.Millisecond

// places are the places of a process at one key: permits, each a separate ownership, and
// shared holds, each for any number of callers. They are independent of the phases of the
// lock. The phase describes the first waiter: while callers have places, it may ask for
// another.
//
// Five events of an ownership take another way for a place, and each of them looks at the
// kind once: a grant (placed), a release by a holder (passOn), the end on this side
// (retirePlace), a loss (lose), and the outcome of the release (left).
type places struct {
	all      []*ownership
	open     *ownership // shared, and callers may join
	releases int        // under way
}

// held lists the ownerships.
func (p *places) held() []*ownership {
	if p == nil {
		return nil
	}
	return p.all
}

// releasing reports whether the release of a place is on its way.
func (p *places) releasing() bool { return p != nil && p.releases > 0 }

// forgetPlaces drops the record of places once there is nothing in it.
func (l *lock) forgetPlaces() {
	if p := l.places; p != nil && len(p.all) == 0 && p.releases == 0 {
		l.places = nil
	}
}

// retirePlace is [lock.retire] for a place.
func (l *lock) retirePlace(own *ownership, release bool) {
	p := l.places
	if release {
		p.releases++
	}
	if i := slices.Index(p.all, own); i >= 0 {
		last := len(p.all) - 1
		p.all[i], p.all[last] = p.all[last], nil
		p.all = p.all[:last]
	}
	if p.open == own {
		p.open = nil
	}
	l.forgetPlaces()
}

// placed takes the grant of a place, which the waiter w asked for, unless that has left.
// A permit is w's, or else for the first that does not ask for itself. A shared hold is
// for the first, and for the following waiters that share. The others go on asking.
func (l *lock) placed(own *ownership, w *Waiter, now clock.Instant, fx *effects) {
	if l.places == nil {
		l.places = &places{}
	}
	p := l.places
	p.all = append(p.all, own)
	fx.schedule = own
	switch {
	case w == nil && own.kind == driver.Permit:
		w = l.firstSilent()
	case w == nil || own.kind == driver.Shared:
		w = l.waiters.first
	}
	switch {
	case w == nil || !own.suits(w.Terms):
		l.giveUp(own, fx) // the caller that asked for it has left
	case own.kind == driver.Permit:
		own.grant(w, own.tokens.last, now, fx)
		fx.more = 1
	default:
		if own.joinable(l.waiters.first) && !own.turn.contended {
			p.open = own
		}
		own.admit(now, fx)
	}
	l.proceed(fx)
}

// admit gives a shared hold to the first waiter, and to the following waiters that want
// the same.
func (own *ownership) admit(now clock.Instant, fx *effects) {
	l := own.lock
	for w := l.waiters.first; w != nil && own.suits(w.Terms) && (fx.wakes.handed == nil || own.joinable(w)); w = l.waiters.first {
		l.waiters.remove(w)
		l.stray(w)
		own.share(w, now, fx)
		if fx.wakes.handed == nil {
			fx.wakes.handed = w
		} else {
			fx.wakes.joined = append(fx.wakes.joined, w)
		}
		if !own.joinable(w) {
			return
		}
	}
}

// joinable reports whether others may share the hold of a waiter: a fixed lease is one
// caller's alone.
func (own *ownership) joinable(w *Waiter) bool { return !own.lease.fixed && !w.Terms.WillFix }

// share adds a waiter to the holders of a shared hold.
func (own *ownership) share(w *Waiter, now clock.Instant, fx *effects) {
	w.prev, w.next = nil, own.holder
	if w.next != nil {
		w.next.prev = w
	}
	own.holder = w
	own.turn.grants++
	w.state, w.own, w.token, w.holds, w.since = granted, own, own.tokens.last, 1, now
	fx.more++
	if w.Terms.MaxHold > 0 && own.noteBound(w) {
		fx.schedule = own
	}
}

// noteBound notes the end of a holder's MaxHold, if it has one. It reports whether the end is
// earlier than the previous bound.
func (own *ownership) noteBound(w *Waiter) bool {
	if own.bound != 0 && own.bound <= w.bound() {
		return false
	}
	own.bound = w.bound()
	return true
}

// joinsOpen lets a caller join a shared hold of this process without a request, if
// that is fair to the waiters here and in other processes, and the lease is good for
// long enough.
func (l *lock) joinsOpen(w *Waiter, now clock.Instant, ahead time.Duration, fx *effects) bool {
	if w.Terms.Kind != driver.Shared || l.waiters.first != nil {
		return false
	}
	own := l.places.open
	if own == nil || !own.suits(w.Terms) || !own.joinable(w) || now >= own.lease.deadline() || own.lease.suspended(ahead) {
		return false
	}
	if now.Sub(own.lease.sent) > own.lease.length/2 {
		// The renewal that was due is late. A separate hold is safer.
		return false
	}
	if own.turn.contended {
		l.places.open = nil // those who wait elsewhere come first
		return false
	}
	if !own.turn.asked && now.Sub(own.turn.began) >= max(l.shard.table.pace.time/2, minQuestion) {
		own.turn.asked = true
		fx.renewNow(own, now)
	}
	own.share(w, now, fx)
	return true
}

// passOn is the release of a place by a holder. It reports whether the process keeps
// the place: others share it, or the next waiter has the permit.
func (own *ownership) passOn(w *Waiter, now clock.Instant, ahead time.Duration, p *Parting, fx *effects) (kept bool) {
	if own.kind == driver.Permit {
		p.handedOff = own.handOn(now, ahead, fx)
		return p.handedOff
	}
	if now >= own.lease.deadline() {
		own.expire(now, fx) // the watchdog is only too late to say so, to all
		p.err, p.cause = w.lostError(), ErrLost
		return true
	}
	own.unshare(w)
	if own.holder == nil {
		return false
	}
	p.handedOff, fx.ended = true, true
	return true
}

// unshare takes a holder out of a shared hold. If all that are left have reached their
// MaxHold, the hold is not renewed any more.
func (own *ownership) unshare(w *Waiter) {
	if w.prev == nil {
		own.holder = w.next
	} else {
		w.prev.next = w.next
	}
	if w.next != nil {
		w.next.prev = w.prev
	}
	w.prev, w.next = nil, nil
	for other := own.holder; other != nil; other = other.next {
		if other.err == nil {
			return
		}
	}
	own.stopped = own.holder != nil
}

// handOn gives a permit to the next waiter that may have it. The store has minted
// tokens for some of them; after those the permit goes back.
func (own *ownership) handOn(now clock.Instant, ahead time.Duration, fx *effects) bool {
	l := own.lock
	if w := l.waiters.first; w != nil && w.marks&asking != 0 && w.Terms.Kind != driver.Permit {
		return false // a caller that wants the lock for itself is not overtaken
	}
	w := l.firstSilent() // waiters that ask get their own answers
	if w == nil || own.lease.fixed || !own.suits(w.Terms) || l.shard.table.life.closed.Load() ||
		own.tokens.last-own.tokens.base >= driver.Tokens-1 || now.Sub(own.lease.sent) > own.lease.length/3 || own.lease.suspended(ahead) {
		return false
	}
	if own.turnOver(now, fx) {
		return false
	}
	own.grant(w, own.tokens.last+1, now, fx)
	if w.Terms.MaxHold > 0 {
		fx.schedule = own // it has a separate end
	}
	if l.phase == acquiring && l.asking() == 0 {
		l.proceed(fx) // with another first waiter, or none
	}
	return true
}

// left is the event that the release of a place has its outcome.
func (l *lock) left(own *ownership, now clock.Instant, listed bool, fx *effects) {
	l.places.releases--
	l.forgetPlaces()
	if l.listing.in {
		l.declines(fx)
	}
	acq := l.acq
	if l.phase == acquiring && acq != nil && !own.turn.contended {
		acq.refusal.room++
	}
	if l.phase != acquiring || l.asking() > 0 {
		return
	}
	switch {
	case acq == nil:
	case listed && acq.next.turn == 0:
		acq.refusal.contended, acq.next.tryAt = true, min(acq.next.tryAt, now.Add(promised))
	case !own.turn.contended:
		acq.next.tryAt = 0 // the place is free, and no other process is known to want it
	}
	fx.wakes.look = l.waiters.first
}
