package lock

import (
	"context"
	"errors"
	"time"

	"github.com/interlock-go/interlock/core/driver"
	"github.com/interlock-go/interlock/core/internal/clock"
)

// A store can offer ([driver.Offered]) a lock that became free to the first process of its
// list, and keeps it for that process for [driver.OfferLasts] from the release on. The message
// may be of any age. So the process counts that time from an earlier instant, the anchor: it
// has sent a request, and the answer had a smaller token than the offer. Hence the release was
// carried out after the request was sent. Tokens are compared, and never times of two clocks.
//
// Each offer is dealt with once: the first waiter takes it, or asks and names it, or no caller
// wants it any more and it is passed on. From then on it is not above the anchor, so that a
// message that comes again does nothing.

// leastOffer is how much of an offer must be left when a caller takes it: the renewal must
// succeed before the end, also if the store or this machine stands still for a second.
const leastOffer = driver.OfferLasts / 2

// confirmAfter is how long after a caller has taken an offer the renewal goes that makes the
// lease a whole one. A section that ends sooner saves the renewal.
const confirmAfter = 10 * time.Millisecond

// fenceKept is for how long a store remembers the token of an offer for certain.
const fenceKept = time.Minute

// takesOffers reports whether a caller with these terms can begin without a request. A fixed
// lease is to be whole. An attentive holder of an offer has no name yet, so no notification
// that others wait could reach it.
func (t *Terms) takesOffers() bool {
	return t.Kind == driver.Exclusive && t.Line == driver.InTurn && !t.Fixed && !t.WillFix && !t.Whole && !t.Attentive && t.Lease > driver.OfferLasts
}

// offered is the event that the store offers the lock.
func (l *lock) offered(now clock.Instant, ahead time.Duration, o offer, fx *effects) {
	acq := l.acq
	switch {
	case l.phase == held, l.own != nil && o.token <= l.own.tokens.last, acq != nil && o.token <= acq.offer.anchor.token:
		// It came late, or again.
	case l.asking() > 0, l.phase == releasing && l.waiters.first != nil:
		// The answer on its way may give the lock to another owner of this process, or say
		// that the offer has ended.
		if acq = l.acquisition(); o.token > acq.offer.pending.token {
			acq.offer.pending = o
		}
	default:
		l.deal(now, ahead, o, fx)
		if l.phase == acquiring {
			fx.wakes.look = l.waiters.first
		}
	}
}

// dealPending deals with an offer that has waited for an answer, unless another is on its way.
func (l *lock) dealPending(now clock.Instant, fx *effects) {
	o := l.acq.offer.pending
	if l.asking() > 0 {
		return
	}
	l.acq.offer.pending = offer{}
	_, ahead := l.shard.table.Clock.Read()
	l.deal(now, ahead, o, fx)
}

// deal deals with an offer while no request of this process for the lock is on its way.
func (l *lock) deal(now clock.Instant, ahead time.Duration, o offer, fx *effects) {
	w := l.waiters.first
	if w == nil {
		if l.acq != nil {
			l.acq.offer.anchor.token = o.token
		}
		fx.sends.passOn = o.token
		return
	}
	acq := l.acquisition()
	a := acq.offer.anchor
	acq.offer.anchor.token = o.token
	until := a.sent.Add(driver.OfferLasts - clock.Drift(driver.OfferLasts))
	switch {
	case w.Terms.takesOffers() && a.sent != 0 && until.Sub(now) >= leastOffer &&
		ahead-a.ahead <= clock.Drift(driver.OfferLasts):
		l.take(now, until, a.ahead, o, fx)
	default:
		// proceed passes it on if no request is going to name it.
		acq.offer.named, acq.next.tryAt = o.token, now
	}
}

// take makes the process the owner by an offer, until an instant, and the first waiter the holder.
func (l *lock) take(now, until clock.Instant, ahead time.Duration, o offer, fx *effects) {
	length := l.waiters.first.Terms.Lease
	own := &ownership{
		lock: l, seq: uint64(o.token), atMost: int32(l.waiters.first.Terms.AtMost), //nolint:gosec // as the token is positive
		// As if it had been granted for the lease so much earlier that it ends then. So all that
		// is said of a lease is true of it.
		lease: lease{
			length: length, sent: until.Add(clock.Drift(length) - length),
			ahead: ahead + clock.Drift(driver.OfferLasts) - clock.Drift(length), offered: true,
		},
		tokens: tokens{last: o.token, base: o.token, room: o.room, replied: now},
		turn:   share{began: now, contended: o.contended}, renew: renewing{at: now.Add(confirmAfter)},
	}
	if length > fenceKept && o.room == 0 {
		own.tokens.base = 0 // the release tells the store the token
	}
	l.listing.in = false
	if l.away.since != 0 {
		l.away.ends(now)
	}
	l.acq.got()
	l.own, l.phase = own, held
	own.grant(l.waiters.first, own.tokens.last, now, fx)
	fx.more, fx.schedule = 1, own
}

// passOn gives an offer that no caller here wants to the next process. The callers that wait
// here, for places, ask then: if no other process waits, no signal comes.
func (t *Table) passOn(key string, token int64) {
	t.life.work.Go(func() {
		owner := t.owner(uint64(token)) //nolint:gosec // a token is positive
		_, err := t.store.Release(context.Background(), driver.ReleaseRequest{
			Key: key, Owner: owner, Token: token, TTL: driver.OfferLasts,
			Deadline: t.Clock.Time(t.Clock.Now().Add(driver.OfferLasts)),
		})
		if err != nil && !errors.Is(err, driver.ErrNotOwner) {
			t.reaper.add(&orphan{key: key, owner: owner, token: token, ttl: driver.OfferLasts})
		}
		if l := t.find(key); l != nil {
			l.shard.event(l, l.passedOn)
		}
	})
}

// passedOn is the event that an offer was passed on.
func (l *lock) passedOn(fx *effects) {
	if l.phase == acquiring && l.asking() == 0 && l.waiters.first != nil {
		l.acquisition().next.tryAt, fx.wakes.look = 0, l.waiters.first
	}
}
