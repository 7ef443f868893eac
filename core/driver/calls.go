package driver

import "time"

// News is what a [Call] tells.
type News uint8

const (
	// Unsure says that calls may have been lost, or that the store does not know whether the lock is free.
	// The locker asks for the lock of Key; if Key is empty, for all locks that its callers wait for, and
	// about all locks that its [Attentive] owners hold.
	Unsure News = iota
	// Turn says that the lock, or a place, became free: the locker asks after the time In.
	Turn
	// Offered says that the lock is offered to the locker.
	//
	// A store with [Turns] can offer a lock that becomes free
	// to the first locker that waits: the call is enough for the locker to have the lock, without a request.
	//
	// A release offers the lock if the first name of the list says so ([Waiter.TakesOffers]), and the store
	// reaches that locker. It mints the token of the offer, and then keeps the lock for the locker's
	// patience, and for OfferLasts at least. Meanwhile the lock is granted only to a request of the
	// locker that names the offer ([AcquireRequest.Offer]). So a late request of the locker does not
	// take back a lock that the locker has begun to use. The owner of the offer is the locker's id,
	// a colon and the token. To Renew and Release it is the owner of the lock: a renewal makes it
	// the holder, and a release gives the lock to the next locker. Decline ends no offer. A locker
	// that the store does not reach is passed over.
	//
	// The time of the offer starts at a request that the locker sent before the release. The proof
	// is a smaller token in the reply to it (see [Reply.Token]). Without such a request the locker
	// must not take the offer.
	Offered
	// Wanted says that another locker waits for the lock of the [Attentive] owner Owner, or that an operator
	// has released it. The locker renews the lease, and learns which.
	Wanted
	// Displaced says that a caller that is [Newest] has come before the locker, which was the first of the
	// list. Its caller asks whether it may wait.
	Displaced
)

// Call is what a store tells a locker. All but an offer is a hint, which can be lost, late, repeated or
// forged. An offer is checked by its token ([Offered]). Nothing is granted by a call, and no lease ends by
// one.
type Call struct {
	What News
	// Key names the lock. It is empty in a call about all locks, and where the store knows only the owner.
	Key string
	// In belongs to Turn: the lockers before this one may take so long. Zero is at once.
	In time.Duration
	// Others belongs to Turn and Offered: other lockers wait that are not called to places at the same time.
	Others bool
	// Token belongs to Offered: the fencing token of the grant. Room is as in [Reply].
	Token, Room int64
	// Owner belongs to Wanted.
	Owner string
	// Reached belongs to Unsure without a Key: the store reaches the locker. Until another such call says the
	// contrary, the locker's entries may say that it takes offers ([Waiter.TakingOffers]). A store that makes
	// no offers never says so.
	Reached bool
}

// Waiting is what a release finds.
type Waiting struct {
	// Others is how many other lockers wait, as far as the store knows.
	Others int
	// Patience is the greatest patience of the lockers that were called ([Waiter.Patience]).
	Patience time.Duration
}

// Call returns the call to the locker with the id, if the list is of a release. free is how many places became
// free; zero: the lock did. An empty list says nothing of any locker.
//
// The k-th locker may ask when those before it have had their patience. Lockers that want places, and stand
// together, have one turn. No turn begins later than the store keeps the lock: lockers at the head of the
// list that have died do not add up.
func (l Waiters) Call(id string, free int) (c Call, called bool) {
	switch {
	case l == "":
		return Call{What: Unsure}, true
	case free > 0:
		return l.callToPlace(id, free)
	}
	c.What = Turn
	first, _ := l.Cut()
	kept, offered := first.Patient(), first.TakesOffers()
	n, together := 0, time.Duration(0) // the patience of the places right before
	for w := range l.All() {
		switch {
		case !called && w.ID() == id:
			if called = true; w.Place() {
				c.In -= together
				c.Others = l.exclusive()
				return c, true
			}
		case called:
			c.Others = true
			return c, n > 1 || !offered // the first has an offer
		default:
			patience := w.Patience()
			if n == 0 && offered {
				patience = max(patience, OfferLasts)
			}
			if kept && n >= KeptFor {
				patience = 0
			}
			if w.Place() {
				patience = max(patience-together, 0) // they go together: the longest counts
				together += patience
			} else {
				together = 0
			}
			c.In += patience
		}
		n++
	}
	return c, called && (n > 1 || !offered)
}

// callToPlace is [Waiters.Call] for places. Only the first lockers can have them, as far as those want places.
func (l Waiters) callToPlace(id string, free int) (c Call, called bool) {
	c.What = Turn
	for w := range l.All() {
		if free == 0 || !w.Place() {
			c.Others = true
			break
		}
		free--
		called = called || w.ID() == id
	}
	return c, called
}

// exclusive reports whether a locker of the list wants the lock for itself.
func (l Waiters) exclusive() bool {
	for w := range l.All() {
		if !w.Place() {
			return true
		}
	}
	return false
}

// Found returns what a release finds that calls the lockers of the list. own is the entry of the releasing
// locker; it may be empty.
func (l Waiters) Found(own Waiter) (found Waiting) {
	for w := range l.All() {
		found.Patience = max(found.Patience, w.Patience())
		if w.ID() != own.ID() {
			found.Others++
		}
	}
	return found
}
