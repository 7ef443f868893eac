package driver

import "time"

// OfferLasts is the minimum time for which a store keeps a lock that it has offered to a
// locker ([Offered]). It is a part of the layout in the store: all processes that share
// locks count on the same time, and it stays as it is.
const OfferLasts = 3 * time.Second
