package keystate

import "github.com/interlock-go/interlock/core/driver"

// Call is a call, and the id of the locker that it is for. The store adds the key.
type Call struct {
	To string
	driver.Call
}

// Signal is the list of the lockers that a lock which became free, or places of it, are for.
type Signal struct {
	// Next are the lockers in the order of their turns. Neighbours that want places may try together.
	Next driver.Waiters
	// Now, unless zero, says that the lock is not free, but that so many of its places are. Only the first
	// lockers of the list can have them, as far as those want places.
	Now int
}

// Offer is an offer of the lock.
type Offer struct {
	Token     int64
	Contended bool // other lockers wait
}

// Called returns the signal with only the lockers that are called: those for which a lock is kept ([driver.KeptFor]), and the next
// one, which asks when those do not come; or those that may have places.
func (s Signal) Called() Signal {
	most := driver.KeptFor + 1
	if s.Now > 0 {
		most = s.Now
	}
	var all []driver.Waiter
	for w := range s.Next.All() {
		if all = append(all, w); len(all) == most {
			break
		}
	}
	return Signal{driver.List(all...), s.Now}
}

// Calls returns the calls that follow from a request, an offer first. The store may fail to make any of
// them.
func (n Notices) Calls() (all []Call) {
	add := func(to string, c driver.Call) { all = append(all, Call{to, c}) }
	if n.To != "" {
		add(n.To, driver.Call{What: driver.Offered, Token: n.Offer.Token, Others: n.Offer.Contended})
	}
	if n.Displaced != "" {
		add(n.Displaced, driver.Call{What: driver.Displaced})
	}
	for _, owner := range n.Wanted {
		id, _ := driver.IsAttentive(owner)
		add(id, driver.Call{What: driver.Wanted, Owner: owner})
	}
	if n.Announced {
		for w := range n.Signal.Called().Next.All() {
			if c, called := n.Signal.Next.Call(w.ID(), n.Signal.Now); called && w.ID() != n.To {
				add(w.ID(), c)
			}
		}
	}
	return all
}
