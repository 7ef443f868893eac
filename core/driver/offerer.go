package driver

import (
	"strings"
	"time"
)

// OfferLasts is the minimum time for which a store keeps a lock that it has offered to a
// locker ([Offerer]). It is a part of the layout in the store: all processes that share
// locks count on the same time, and it stays as it is.
const OfferLasts = 3 * time.Second

// Offerer is what a [Store] implements that can offer a lock which becomes free to the first
// locker that waits: a message is enough for the locker to have the lock, without a request.
// Such a store is a [Ranger], too.
//
// A release offers the lock if the first name of the list says so ([TakesOffers]), and the store
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
type Offerer interface {
	// Offers calls take for each lock that is offered to the locker with the id. ready says
	// whether the store reaches the locker: from true to false its list names say that it takes
	// offers. Calls of take can be missing, late, repeated or in another order.
	//
	// A locker calls Offers once. It returns at once; ready and take may be called from any
	// goroutine. The function stop ends the calls, and does not wait for one under way.
	Offers(id string, ready func(bool), take func(Offer)) (stop func())
}

// Offer is a lock that is offered to a locker.
type Offer struct {
	// Key names the lock.
	Key string
	// Token is the fencing token of the grant.
	Token int64
	// Contended says that other lockers wait for the lock.
	Contended bool
}

// TakingOffers returns a name that [WithPatience] has made, changed to the name of a locker
// that takes offers. The letter of the patience is a capital letter then.
func TakingOffers(name string) string {
	if i := strings.LastIndexByte(name, '~'); i >= 0 {
		return name[:i] + strings.ToUpper(name[i:])
	}
	return name
}

// TakesOffers reports whether a name is of a locker that takes offers. Where that is the first
// name of an announced list ([Signal.Next]), the lock has been offered to its locker.
func TakesOffers(name string) bool {
	_, letter, _ := strings.Cut(name, "~")
	return len(letter) == 1 && letter[0] >= 'A' && letter[0] <= 'Z'
}
