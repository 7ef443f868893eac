package driver

import (
	"context"
	"math"
	"strings"
	"time"
)

// KeptFor is for how many lockers, the first of the list, a [Ranger] keeps a lock that became
// free. When they have had their patience, all others ask.
const KeptFor = 4

// Ranger is what a [Store] implements that keeps a lock which becomes free for the first [KeptFor]
// lockers that wait, one after the other. Each of them asks for as long as it needs to answer a call
// ([WithPatience]), so that turns do not go to the processes that are nearest to the store.
type Ranger interface {
	// RoundTrip returns how long a request and its reply take at the least, as measured
	// lately; zero if no request has been answered yet. A locker asks for three of these
	// (and 2 ms), so a store that calls lockers late adds a third of that
	// delay. It is called often.
	RoundTrip() time.Duration

	// Decline takes a locker out of the list of a key: its last caller has left. If the lock
	// is kept for it, the turn goes to the next. A locker that is not taken out is called in vain,
	// which costs the others its patience. Decline returns nil once the store has carried the
	// request out, and also if the store never will. Until then a later request of the locker
	// does not enter the list, since Decline would take it out again. An error says that the
	// store may carry the request out at any time. When ctx ends, Decline returns soon.
	Decline(ctx context.Context, key, waiter string) error
}

// The patience of a locker is a letter. "a" is the least patience, also of a locker that says
// nothing, and each letter is the square root of two times the letter before it, up to the most.
const (
	leastPatience = 5 * time.Millisecond
	mostPatience  = time.Second
	lastLetter    = 'q'
)

// WithPatience returns the name of a waiting locker followed by "~" and a letter. The letter
// stands for at least the time need, between 5 ms and 1 s: the store reserves a free lock for
// that long when the locker's turn has come. The name goes into [AcquireRequest.Waiter] and
// [ReleaseRequest.Waiter], and comes back in lists ([Signal.Next]).
func WithPatience(name string, need time.Duration) string {
	c := byte('a')
	for c < lastLetter && patienceOf(c) < need {
		c++
	}
	return name + "~" + string(c)
}

// CutPatience returns an entry of a list without what [WithPatience] has put there, and the
// patience in it. For an entry without patience, or with a letter that no version has, that
// is 5 ms.
func CutPatience(entry string) (name string, patience time.Duration) {
	name, letter, _ := strings.Cut(entry, "~")
	letter = strings.ToLower(letter)
	if len(letter) != 1 || letter[0] < 'a' || letter[0] > 'z' {
		return name, leastPatience
	}
	return name, patienceOf(letter[0])
}

// patienceOf is what a letter stands for, in whole milliseconds.
func patienceOf(letter byte) time.Duration {
	ms := math.Floor(float64(leastPatience.Milliseconds()) * math.Pow(2, float64(letter-'a')/2))
	return min(mostPatience, time.Duration(ms)*time.Millisecond)
}
