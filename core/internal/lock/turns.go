package lock

import (
	"time"

	"github.com/interlock-go/interlock/core/driver"
)

// turn is when a locker may try that waits with others.
type turn struct {
	named  bool           // it is in the list
	before int            // so many turns come before its own
	begins time.Duration  // as long as the lockers before it may take
	behind driver.Waiters // the lockers that wait after it
}

// turnIn finds the turn of a locker in a list. A locker that is not in it comes after all
// of them. An empty list says nothing about any locker.
//
// Lockers that want places, and stand together, have one turn. So a locker that wants a
// place passes over no other.
//
// No turn begins later than the store keeps the lock: processes at the head of the list that
// have died do not add up.
func turnIn(list driver.Waiters, id string) (t turn) {
	if list == "" {
		return turn{named: true}
	}
	together := time.Duration(-1) // the patience of the places right before, if there are any
	kept := reserved(list)
	t.behind = list
	for n, left := 0, list; left != ""; n++ {
		var w driver.Waiter
		w, left = left.Cut()
		patience, place := w.Patience(), w.Place()
		if kept && n >= driver.KeptFor {
			patience = 0
		}
		if t.before == 0 && w.TakesOffers() {
			patience = max(patience, driver.OfferLasts) // it has been offered the lock
		}
		if w.ID() == id {
			if place && together >= 0 {
				t.before--
				t.begins -= together
			}
			if t.named = true; place {
				t.behind = list.Without(id) // those before it may come later
			} else {
				t.behind = left
			}
			return t
		}
		if place && together >= 0 {
			patience = max(patience-together, 0) // they go together: the longest counts
			together += patience
		} else {
			t.before++
			together = patience
		}
		t.begins += patience
		if !place {
			together = -1
		}
	}
	return t
}

// farthest returns the greatest patience in a list.
func farthest(list driver.Waiters) (most time.Duration) {
	for w := range list.All() {
		most = max(most, w.Patience())
	}
	return most
}

// reserved reports whether the store keeps the lock for the first of a list that a release
// has called.
func reserved(list driver.Waiters) bool {
	first, _ := list.Cut()
	return first.Patient()
}

// mayHave reports whether a place that became free is for this locker: it is among the
// first of the list, and all of these want places.
func mayHave(s driver.Signal, id string) bool {
	left := s.Now
	for w := range s.Next.All() {
		if !w.Place() || left == 0 {
			return false
		}
		if w.ID() == id {
			return true
		}
		left--
	}
	return false
}

// exclusiveIn reports whether a locker of a list wants the lock for itself.
func exclusiveIn(list driver.Waiters) bool {
	for w := range list.All() {
		if !w.Place() {
			return true
		}
	}
	return false
}
