package keystate

import (
	"fmt"
	"strings"
	"time"

	"github.com/interlock-go/interlock/core/driver"
)

// reservation says that a lock is free, and kept for the first of the lockers that wait: for
// each as long as it may take, one after the other. It means that others are refused. A lease
// begins as it does for a free lock. The zero value is none.
type reservation struct {
	since time.Time
	lasts time.Duration
	offer string // the owner that is offered the lock while the first turn lasts; may be empty
	token int64  // of the offer
}

// stands reports whether others are kept out.
func (v reservation) stands(now time.Time) bool { return v.left(now) > 0 }

// left is for how long they are.
func (v reservation) left(now time.Time) time.Duration { return v.lasts - now.Sub(v.since) }

// to is the id of the locker that is offered the lock; empty if none is.
func (v reservation) to() string {
	return v.offer[:max(0, strings.LastIndexByte(v.offer, ':'))]
}

// offers reports whether the lock is offered to an owner.
func (v reservation) offers(owner string, now time.Time) bool {
	return v.offer != "" && v.offer == owner && v.stands(now)
}

// reserve keeps a lock that became free for the next lockers, one after the other.
// Lockers without a patience ask whenever they can.
func (r *Record) reserve(v reservation, now time.Time) {
	if r.reserved = v; v.offer == "" {
		r.offersNothing()
	}
	r.reserved.since = now
	for i, w := range r.waiting {
		if i == driver.KeptFor || !w.Patient() {
			break
		}
		r.reserved.lasts += r.takes(i)
	}
}

// offersNothing notes that the first locker of the list is offered nothing.
func (r *Record) offersNothing() {
	if len(r.waiting) > 0 {
		r.waiting[0].Waiter = r.waiting[0].LeavingOffers()
	}
}

// Delay has the turns of a lock that became free at this moment begin later, as its lockers learn of them later.
func (r *Record) Delay(d time.Duration) {
	if r.reserved.lasts > 0 {
		r.reserved.since = r.reserved.since.Add(d.Truncate(time.Microsecond))
	}
}

// passes returns in what time the turn of a locker begins for which a lock is reserved, or the
// reservation ends. If that has come, the lockers before it lose their places. The locker that
// is offered the lock has its turn if it names the offer, and otherwise after that time: a
// late request must not take back a lock that the locker has begun to use.
func (r *Record) passes(id string, offer int64, now time.Time) (left time.Duration) {
	if r.reserved.offer != "" && r.reserved.to() == id && r.reserved.token == offer {
		r.unlist(id)
		return 0
	}
	after, passed := time.Duration(0), now.Sub(r.reserved.since)
	for i, w := range r.waiting {
		switch {
		case w.ID() == id:
			if r.reserved.offer != "" { // also where another locker goes before all by now
				after = max(after, driver.OfferLasts)
			}
			if left = min(after, r.reserved.lasts) - passed; left <= 0 {
				r.waiting = r.waiting[i+1:]
			}
			return left
		case !w.Patient():
			return r.reserved.left(now)
		}
		after += r.takes(i)
	}
	return r.reserved.left(now)
}

// takes is how long a locker of the list may take to answer a call, or to use an offer.
func (r *Record) takes(i int) time.Duration {
	patience := r.waiting[i].Patience()
	if r.waiting[i].ID() == r.reserved.to() {
		patience = max(patience, driver.OfferLasts)
	}
	return patience
}

// accept makes an owner with an offer the holder.
func (r *Record) accept(owner string, ttl time.Duration, now time.Time) {
	if r.reserved.offers(owner, now) {
		r.unlist(r.reserved.to())
		r.owner, r.expires, r.reserved = owner, now.Add(ttl), reservation{}
	}
}

// offer offers a lock that becomes free to the first locker that waits, if that takes offers. A
// locker that has said so, and that the store does not reach any more, loses its place, and so do
// those after it.
func (r *Record) offer(n *Notices, reaches func(id string) bool, now time.Time) (v reservation) {
	for len(r.waiting) > 0 && r.waiting[0].TakesOffers() && !reaches(r.waiting[0].ID()) {
		r.waiting = r.waiting[1:]
	}
	if len(r.waiting) == 0 || r.waiting[0].Place() || !r.waiting[0].TakesOffers() {
		return v
	}
	id := r.waiting[0].ID()
	token := r.mint(now, 1)
	switch {
	case r.next != 0:
		token = r.next
	case r.behind(now):
		return v // an offer does not say that few hand-offs may follow
	}
	n.call(id, driver.Call{What: driver.Offered, Token: token, Others: len(r.waiting) > 1})
	return reservation{offer: fmt.Sprintf("%s:%d", id, token), token: token}
}
