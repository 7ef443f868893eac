package lock

import (
	"time"

	"github.com/interlock-go/interlock/core/driver"
	"github.com/interlock-go/interlock/core/internal/clock"
	"github.com/interlock-go/interlock/core/internal/timers"
)

// ownership is this process's unbroken possession of a key in the store, under one
// owner. It passes from hold to hold without a request, for as long as that is fair
// to other processes.
type ownership struct {
	timers.Slot       // in the watchdog's events
	atMost      int32 // of a permit
	lock        *lock
	// holder has the lock. Callers that share an ownership of the kind Shared follow
	// it. nil: vacant, until a renewal has confirmed the lease.
	holder *Waiter
	seq    uint64 // of the owner
	// bound is the end of the holder's MaxHold, of several holders the first end, or
	// earlier; zero: none has a bound.
	bound     clock.Instant
	kind      driver.Kind
	over      bool // released or lost
	stopped   bool // MaxHold: no more renewals
	ambiguous bool // a try of the acquire may be executed later

	lease  lease
	tokens tokens
	turn   share
	renew  renewing
}

// lease is the time for which the store keeps the lock.
//
// Invariant: it is either fixed, or renewed. While it is offered, it was not renewed, and sent is
// so early that the lease ends with the offer.
type lease struct {
	length time.Duration
	// sent is the send time of the last confirmed acquire or renewal. The lease counts from
	// it. ahead is how far the wall clock had run ahead when the store last said that the
	// lock is ours.
	sent    clock.Instant
	ahead   time.Duration
	fixed   bool // not renewed
	offered bool // begun without a request, and not yet renewed
}

// tokens are the fencing tokens, as the store has minted them.
//
// Invariant: last is not below base. It is above base only after hand-offs, and with room by at
// most room.
type tokens struct {
	last    int64         // the highest given out
	base    int64         // the token that the store minted; zero: the release tells the store the last one
	room    int64         // how many tokens above base it leaves to hand-offs; zero: no bound
	number  int64         // of the caller that is Newest; zero: the caller is not
	replied clock.Instant // when the store minted base
}

// share is the turn of this process among others.
//
// Invariant: an answer is awaited only while no others are known to wait.
type share struct {
	began     clock.Instant // or when the store last said that no other process waits
	grants    int32         // how often the lock was given since
	asked     bool          // whether others wait, and no answer yet
	contended bool          // other processes wait
}

// renewing is the watchdog's work at the lease. The renewal that is underway may have been carried
// out before a hint, so the next one follows it at once.
type renewing struct {
	at        clock.Instant // when the next one is due
	hint      clock.Instant // when the store had something to tell; zero: the lock was looked at since
	failed    *error        // why the last one did; nil: it was confirmed, as nearly all are
	confirmed uint32        // so many were
	underway  bool
	tries     uint8 // to renew an offer
}

// owner is the text that identifies the owner in the store.
func (own *ownership) owner() string { return own.lock.shard.table.owner(own.seq) }

// deadline is until when the lease is good without another renewal.
func (l *lease) deadline() clock.Instant {
	return l.sent.Add(l.length - clock.Drift(l.length))
}

// ends is until when the store may keep a lease that is not renewed any more. The store
// counts by its own clock, from a moment before the reply to the acquire or renewal
// came. A renewal has a sixth of the lease for its reply.
func (own *ownership) ends() clock.Instant {
	return max(own.tokens.replied, own.lease.sent.Add(own.lease.length/6)).Add(own.lease.length + clock.Drift(own.lease.length))
}

// suits reports whether a waiter with these terms can have the lock by a hand-off.
func (own *ownership) suits(t *Terms) bool {
	return own.kind == t.Kind && int(own.atMost) == t.AtMost &&
		own.lease.length == t.Lease && own.lease.fixed == t.Fixed && !own.stopped &&
		(own.tokens.number != 0) == (t.Line == driver.Newest) &&
		(!t.Attentive || own.seq&attentive != 0 || own.lock.shard.table.store.turns == nil)
}

// suspended reports whether the machine may have slept since the lease was last
// confirmed: the wall clock went on, the monotonic clock did not.
func (l *lease) suspended(ahead time.Duration) bool {
	return ahead-l.ahead > clock.Drift(l.length)
}

// unknown reports whether a request must give the store the last token: the store did
// not mint it, or so long ago that it may have forgotten it. The store minted all
// tokens of a permit ([driver.Tokens]).
func (own *ownership) unknown(now clock.Instant) bool {
	return own.tokens.last != own.tokens.base && own.kind != driver.Permit || now.Sub(own.tokens.replied) > own.lease.length
}

// orphan is the owner for the reaper.
func (own *ownership) orphan(now clock.Instant) *orphan {
	return &orphan{
		key: own.lock.key, owner: own.owner(), kind: own.kind, atMost: int(own.atMost),
		ttl: own.lease.length, token: own.tokens.last, news: own.unknown(now),
	}
}

// nextEvent is when the watchdog has to look at the ownership, and how much earlier
// it may: for the renewal, the holder's MaxHold or the deadline.
func (own *ownership) nextEvent() (at clock.Instant, tolerance time.Duration) {
	if at = own.lease.deadline(); own.renew.hint != 0 && !own.renew.underway {
		return own.renew.hint, 0
	}
	if !own.lease.fixed && !own.stopped && own.renew.at < at {
		at, tolerance = own.renew.at, own.lease.slack()
	}
	if own.bound != 0 && own.bound < at {
		at, tolerance = own.bound, 0
	}
	return at, tolerance
}

// slack is how much earlier than due a renewal may go: fewer, larger batches.
func (l *lease) slack() time.Duration {
	if l.offered {
		return confirmAfter / 2
	}
	return min(l.length/60, 50*time.Millisecond)
}

// within is how long a renewal may take that is sent now: a sixth of the lease, so that three
// fit between the start of the first, at a third of the lease, and the deadline. An offer is not
// renewed yet: its first renewal has a third of the time left.
func (l *lease) within(now clock.Instant) time.Duration {
	if l.offered {
		// A multiple, so that renewals share batches.
		return min(l.length/6, max(l.deadline().Sub(now)/3, confirmAfter).Truncate(confirmAfter))
	}
	return l.length / 6
}

// grant makes a waiter the holder.
func (own *ownership) grant(w *Waiter, token int64, now clock.Instant, fx *effects) {
	l := own.lock
	l.waiters.remove(w)
	if w.marks&asking != 0 {
		l.stray(w) // it has left its try, and not the queue yet
	}
	if w.Terms.Line == driver.OneWaiter && w.token != 0 {
		l.unlists(fx) // the store takes it for the only waiter still
	}
	if next := l.waiters.first; next != nil && next.Terms.Line != driver.InTurn {
		fx.wakes.look = next // the store has to know that it waits
	}
	own.hold(w, token, now, fx)
}

// hold makes a caller the holder that is not in the queue, or not any more.
func (own *ownership) hold(w *Waiter, token int64, now clock.Instant, fx *effects) {
	own.holder, own.tokens.last = w, token
	own.turn.grants++
	w.state, w.own, w.token, w.holds, w.since = granted, own, token, 1, now
	own.bound = 0
	if w.Terms.MaxHold > 0 {
		own.noteBound(w)
	}
	fx.wakes.handed = w
}

// handOff gives the lock to the next waiter, which there is, if that waiter may have it: no
// request, a new token. It reports whether the process keeps the lock, maybe without a holder
// until a renewal has confirmed the lease.
//
// The token is the last one plus one, without regard to any clock. The store gets
// it at the release. If there is none, the store's own clock is ahead of it at the
// next grant, as long as that clock was not set back since the acquire: a lock
// is not handed off more than once a microsecond. Where the clock lagged at the acquire
// already, the grant has left room for so many hand-offs.
func (own *ownership) handOff(now clock.Instant, ahead time.Duration, fx *effects) (kept bool) {
	w := own.lock.waiters.first
	if own.lease.fixed || own.tokens.number != 0 || !own.suits(w.Terms) || own.lock.shard.table.life.closed.Load() || now >= own.lease.deadline() {
		return false
	}
	if own.tokens.room > 0 && own.tokens.last-own.tokens.base >= own.tokens.room || own.turnOver(now, fx) {
		return false
	}
	if own.lease.aging(now) || own.lease.offered && w.Terms.Whole || own.lease.suspended(ahead) {
		// Less than two thirds are left, or the clocks disagree: no waiter gets it
		// before a renewal has confirmed it.
		own.holder, own.bound = nil, 0
		fx.renewNow(own, now)
		return true
	}
	own.grant(w, own.tokens.last+1, now, fx)
	if w.Terms.MaxHold > 0 {
		fx.schedule = own // it has a separate end
	}
	return true
}

// aging reports whether so much of the lease has passed that no other caller should begin with
// the rest.
func (l *lease) aging(now clock.Instant) bool {
	if l.offered {
		return l.deadline().Sub(now) < leastOffer
	}
	return now.Sub(l.sent) > l.length/3
}

// turnOver reports whether the turn of this process has ended, and other processes
// wait. When the turn is half over it has the watchdog ask who waits, so that the
// answer is here at its end. Until it is, no other process is known to wait.
func (own *ownership) turnOver(now clock.Instant, fx *effects) bool {
	table := own.lock.shard.table
	turn, grants := now.Sub(own.turn.began), int(own.turn.grants)
	length := max(table.pace.time, own.lock.away.fair())
	if own.turn.contended && (turn >= length || grants >= table.pace.grants) {
		return true
	}
	if !own.turn.asked && !own.turn.contended && (turn >= length/2 || grants >= table.pace.grants/2) {
		own.turn.asked = true
		fx.renewNow(own, now)
	}
	return false
}

// absence measures how long a turn of another process takes, with the way of the lock to that
// process. The distance that a process states does not include all delays: a process that is short
// of time, or gets its messages late, begins late each time. Turns of this process that last nearly
// as long leave it a fair part of the time. They last three quarters as long, and not as long: the
// turns of two processes that measured each other would grow without end.
//
// Invariant: while since is not zero, this process waits in a list, and others counts.
type absence struct {
	far    time.Duration // the greatest patience of the lockers that were called lately
	since  clock.Instant // when this process released the lock; zero: it did not wait for it then
	others int           // so many processes were before this one
	turn   time.Duration // of one section, a mean of the last turns
}

// sees notes the greatest patience of the lockers that a release has called; this process, which has the entry own, is included.
// Releases that do not call the farthest one come in between, so it is forgotten slowly.
func (a *absence) sees(farthest time.Duration, own driver.Waiter) {
	a.far = max(farthest, own.Patience(), a.far-a.far/8)
}

// fair is how long a turn of this process may last at least. No section runs during the way to the
// farthest locker and back: two of its round trips. Its patience is three, so the turn is a little
// longer than that time.
func (a *absence) fair() time.Duration { return max(a.far, a.turn) / 4 * 3 }

// begins notes a release after which this process waits in a list with others.
func (a *absence) begins(sent clock.Instant, others int) { a.since, a.others = sent, others }

// ends notes that this process has the lock again, which it has waited for in a list. One process that hung counts for no more than
// the farthest that there can be.
func (a *absence) ends(now clock.Instant) {
	if a.others > 0 {
		a.turn += (min(now.Sub(a.since)/time.Duration(a.others), time.Second) - a.turn) / 4
	}
	a.since = 0
}

// renewNow asks for a renewal out of turn.
func (fx *effects) renewNow(own *ownership, now clock.Instant) {
	if own.renew.underway || own.lease.fixed || own.stopped || own.over {
		return
	}
	own.renew.at = now
	fx.schedule = own
}

// retire ends the ownership on this side. If its release is to be sent, the first waiter does
// not ask for the lock until the event released: it would not be free yet.
func (l *lock) retire(own *ownership, release bool, fx *effects) {
	own.over = true
	fx.cancel, fx.schedule = own, nil
	if own.kind.Place() {
		l.retirePlace(own, release)
		return
	}
	l.own = nil
	if !release {
		return
	}
	l.own, l.phase = own, releasing
	if l.acq != nil {
		l.acq.next.turn = 0
	}
}

// giveUp releases, in the background, an ownership that no waiter can use.
func (l *lock) giveUp(own *ownership, fx *effects) {
	l.retire(own, true, fx)
	fx.sends.release = own
}
