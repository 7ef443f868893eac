package driver

import "time"

// OfferLasts is the minimum time for which a store keeps a lock that it has offered to a
// locker ([Offer]). It is a part of the layout in the store: all processes that share
// locks count on the same time, and it stays as it is.
const OfferLasts = 3 * time.Second

// Offer is a lock that is offered to a locker. A store with [Turns] can offer a lock that becomes
// free to the first locker that waits: a message is enough for the locker to have the lock, without a
// request.
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
type Offer struct {
	// Key names the lock.
	Key string
	// Token is the fencing token of the grant.
	Token int64
	// Contended says that other lockers wait for the lock.
	Contended bool
	// Room is as in [Reply].
	Room int64
}
