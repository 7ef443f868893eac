package lock

import (
	"time"

	"github.com/interlock-go/interlock/core/driver"
)

// names are the names of the process in lists of waiting lockers, by the kind of hold.
type names struct {
	trip   time.Duration // to the store and back, when they were made
	of     [driver.Permit + 1]driver.Waiter
	offers driver.Waiter // of a process that takes offers
}

func namesOf(id string, need time.Duration) *names {
	n := &names{}
	for kind := range n.of {
		n.of[kind] = driver.NewWaiter(id, driver.Kind(kind), need) //nolint:gosec // three kinds
	}
	n.offers = n.of[driver.Exclusive].TakingOffers()
	return n
}

// name returns the name of the process for a list of waiting lockers. For a store that
// reserves the lock for lockers that wait, the name says how long this process may take: a
// message to it and a request from it are a round trip, and there is time for a pause. The
// store is asked how long that is where others are known to wait, and until it has measured
// a round trip.
func (t *Table) name(kind driver.Kind, contended bool) driver.Waiter {
	n := t.owners.names.Load()
	if t.store.turns == nil || n.trip != 0 && !contended {
		return n.of[kind]
	}
	if trip := t.store.turns.RoundTrip(); n.trip == 0 || trip > n.trip+n.trip/8 || trip < n.trip-n.trip/8 {
		n = namesOf(t.ID, 3*trip+2*time.Millisecond)
		n.trip = trip
		t.owners.names.Store(n)
	}
	return n.of[kind]
}
