package driver

import (
	"iter"
	"math"
	"strings"
	"time"
)

// Waiter is the entry of a locker in the list of the lockers that wait for a lock. It is a text, so
// that a store keeps it as it is. [NewWaiter] makes one, and its methods read it. The empty text is
// no locker.
//
// The text is a part of the layout in the store, and the same in all stores: "+" for a locker that
// wants a place, or "-" once it was called to one; its id; and for a locker that says how long it may
// take "~" and a letter. The letter "a" is the least patience, 5 ms, and each letter is the square
// root of two times the letter before it, up to a second. A locker that takes offers has a capital
// letter.
type Waiter string

const (
	leastPatience = 5 * time.Millisecond
	mostPatience  = time.Second
	lastLetter    = 'q'
)

// NewWaiter makes the entry of the locker with an id, which wants a hold of a kind. The store keeps
// a free lock for the locker for at least the time need, between 5 ms and 1 s, when its turn has
// come; zero does not say how long the locker may take.
func NewWaiter(id string, kind Kind, need time.Duration) Waiter {
	text := id
	if need > 0 {
		c := byte('a')
		for c < lastLetter && patienceOf(c) < need {
			c++
		}
		text += "~" + string(c)
	}
	if kind.Place() {
		return Waiter(text).AtPlaces()
	}
	return Waiter(text)
}

// TakingOffers returns the entry of the locker when it takes offers ([Offered]). An entry that does
// not say how long its locker may take, stays as it is.
func (w Waiter) TakingOffers() Waiter {
	if i := strings.LastIndexByte(string(w), '~'); i >= 0 {
		return w[:i] + Waiter(strings.ToUpper(string(w[i:])))
	}
	return w
}

// LeavingOffers returns the entry of the locker when it takes no offers.
func (w Waiter) LeavingOffers() Waiter {
	if i := strings.LastIndexByte(string(w), '~'); i >= 0 {
		return w[:i] + Waiter(strings.ToLower(string(w[i:])))
	}
	return w
}

// Exclusive returns the entry of the locker when it wants the lock, and no place.
func (w Waiter) Exclusive() Waiter {
	if w.Place() {
		return w[1:]
	}
	return w
}

// Place reports whether the locker wants a place, and not the lock.
func (w Waiter) Place() bool { return w != "" && (w[0] == '+' || w[0] == '-') }

// AtPlaces returns the entry of the locker when it wants a place, and was not called to one.
func (w Waiter) AtPlaces() Waiter { return "+" + w.Exclusive() }

// Calling returns the entry of a locker that wants a place, when it was called to one.
func (w Waiter) Calling() Waiter { return "-" + w.Exclusive() }

// Called reports whether the locker was called to a place, and has not come yet.
func (w Waiter) Called() bool { return w != "" && w[0] == '-' }

// ID returns the id of the locker.
func (w Waiter) ID() string {
	id, _, _ := strings.Cut(string(w.Exclusive()), "~")
	return id
}

// Patient reports whether the entry says how long its locker may take.
func (w Waiter) Patient() bool { return strings.Contains(string(w), "~") }

// Patience returns how long the locker may take to answer a call. It is 5 ms for a locker that
// does not say it, or says it by a letter that this version does not know.
func (w Waiter) Patience() time.Duration {
	_, letter, _ := strings.Cut(string(w), "~")
	letter = strings.ToLower(letter)
	if len(letter) != 1 || letter[0] < 'a' || letter[0] > 'z' {
		return leastPatience
	}
	return patienceOf(letter[0])
}

// TakesOffers reports whether the locker takes offers. If that is the first entry of the
// list of a lock that became free, the lock has been offered to its locker.
func (w Waiter) TakesOffers() bool {
	_, letter, _ := strings.Cut(string(w), "~")
	return len(letter) == 1 && letter[0] >= 'A' && letter[0] <= 'Z'
}

// patienceOf is what a letter stands for, in whole milliseconds.
func patienceOf(letter byte) time.Duration {
	ms := math.Floor(float64(leastPatience.Milliseconds()) * math.Pow(2, float64(letter-'a')/2))
	return min(mostPatience, time.Duration(ms)*time.Millisecond)
}

// Waiters is a list of lockers that wait for a lock, in the order of their turns: their entries,
// separated by commas.
type Waiters string

// List makes a list.
func List(all ...Waiter) Waiters {
	var b strings.Builder
	for i, w := range all {
		if i > 0 {
			b.WriteByte(',')
		}
		b.WriteString(string(w))
	}
	return Waiters(b.String())
}

// All returns the entries.
func (l Waiters) All() iter.Seq[Waiter] {
	return func(yield func(Waiter) bool) {
		for rest := string(l); rest != ""; {
			var w string
			if w, rest, _ = strings.Cut(rest, ","); w != "" && !yield(Waiter(w)) {
				return
			}
		}
	}
}

// Cut returns the first entry, and the list without it.
func (l Waiters) Cut() (first Waiter, rest Waiters) {
	w, more, _ := strings.Cut(string(l), ",")
	return Waiter(w), Waiters(more)
}

// Without returns the list without the entry of a locker.
func (l Waiters) Without(id string) Waiters {
	var left []Waiter
	for w := range l.All() {
		if w.ID() != id {
			left = append(left, w)
		}
	}
	return List(left...)
}

// For returns the list as a store may send it to the locker with the id: with "." in place of the ids
// of the other lockers.
func (l Waiters) For(id string) Waiters {
	var all []Waiter
	for w := range l.All() {
		if other := w.ID(); other != id {
			w = Waiter(strings.Replace(string(w), other, ".", 1))
		}
		all = append(all, w)
	}
	return List(all...)
}
