package driver

import (
	"math"
	"strings"
	"time"
)

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
