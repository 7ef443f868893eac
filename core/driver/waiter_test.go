package driver_test

import (
	"testing"
	"time"

	"github.com/interlock-go/interlock/core/driver"
)

func TestALettersPatienceIsWhatItsLockerNeeds(t *testing.T) {
	for need, want := range map[time.Duration]struct {
		entry driver.Waiter
		is    time.Duration
	}{
		0:                       {"x", 5 * time.Millisecond},
		5 * time.Millisecond:    {"x~a", 5 * time.Millisecond},
		6 * time.Millisecond:    {"x~b", 7 * time.Millisecond},
		32 * time.Millisecond:   {"x~g", 40 * time.Millisecond},
		999 * time.Millisecond:  {"x~q", time.Second},
		2500 * time.Millisecond: {"x~q", time.Second},
	} {
		w := driver.NewWaiter("x", driver.Exclusive, need)
		if w != want.entry || w.ID() != "x" || w.Patience() != want.is || w.Patience() < min(need, time.Second) || w.Patient() != (need > 0) {
			t.Errorf("%v: %q of %q with %v; want %q of \"x\" with %v", need, w, w.ID(), w.Patience(), want.entry, want.is)
		}
	}
}

func TestAnEntryWithoutALetterHasTheLeastPatience(t *testing.T) {
	for _, w := range []driver.Waiter{"x", "+x", "x~", "x~1", "x~ab", ""} {
		if w.Patience() != 5*time.Millisecond {
			t.Errorf("%q has a patience of %v; want the least, 5 ms", w, w.Patience())
		}
	}
}

func TestAnEntrySaysWhatItsLockerWants(t *testing.T) {
	place := driver.NewWaiter("x", driver.Permit, time.Second)
	lock := driver.NewWaiter("y", driver.Exclusive, time.Second).TakingOffers()
	if !place.Place() || place.TakesOffers() || place.Exclusive() != "x~q" || lock.Place() || !lock.TakesOffers() || lock.LeavingOffers() != "y~q" {
		t.Errorf("%q wants a place and takes no offers, %q wants the lock and takes offers; their methods say otherwise", place, lock)
	}
	if called := place.Calling(); !called.Called() || place.Called() || !called.Place() || called.ID() != "x" || called.AtPlaces() != place {
		t.Errorf("%q is the entry of %q after a call to a place; its methods say otherwise", called, place)
	}
	list := driver.List(place, lock, "z")
	first, rest := list.Cut()
	if list != "+x~q,y~Q,z" || first != place || rest != "y~Q,z" || list.Without("y") != "+x~q,z" {
		t.Errorf("the list of three lockers is %q, its first %q and the rest %q; without y it is %q", list, first, rest, list.Without("y"))
	}
}
