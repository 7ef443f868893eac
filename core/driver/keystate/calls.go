package keystate

import "github.com/interlock-go/interlock/core/driver"

// Call is a call, and the id of the locker that it is for. The store adds the key.
type Call struct {
	To string
	driver.Call
}

// call adds a call.
func (n *Notices) call(to string, c driver.Call) { n.Calls = append(n.Calls, Call{to, c}) }

// turns calls the first lockers of a list: as many as there are free places; or if that is zero, and the lock became free,
// those for which it is kept ([driver.KeptFor]), and the next one, which asks when those do not come. A
// locker that is offered the lock gets no other call.
func (n *Notices) turns(list []waiting, free int) {
	next, most := names(list), free
	if most == 0 {
		most = driver.KeptFor + 1
	}
	for _, w := range list[:min(most, len(list))] {
		if c, called := next.Call(w.ID(), free); called {
			n.call(w.ID(), c)
		}
	}
}

// Hint returns the text of a call that another locker waits for the lock of an owner, or that a newer caller has come: the
// owner, which has the number zero then.
func (c Call) Hint() (text string, ok bool) {
	switch c.What {
	case driver.Wanted:
		return c.Owner, true
	case driver.Displaced:
		return driver.Attentive(c.To + ":0"), true
	default:
		return "", false
	}
}

// ReadHint reads such a text.
func ReadHint(text string) (c Call, ok bool) {
	id, ok := driver.IsAttentive(text)
	c = Call{id, driver.Call{What: driver.Wanted, Owner: text}}
	if text == driver.Attentive(id+":0") {
		c.Call = driver.Call{What: driver.Displaced}
	}
	return c, ok
}
