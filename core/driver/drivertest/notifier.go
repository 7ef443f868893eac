package drivertest

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/interlock-go/interlock/core/driver"
)

// RunNotifier tests a store that tells lockers what happens to the locks which they hold
// ([driver.Notifier]). It calls open as [Run] does.
func RunNotifier(t *testing.T, open func(t *testing.T) driver.Store) {
	t.Helper()
	run(t, "notifier", notifier, open)
}

// RunNotifierInBubbles is [RunNotifier] in fake time, as [RunInBubbles] is [Run].
func RunNotifierInBubbles(t *testing.T, open func(t *testing.T) driver.Store) {
	t.Helper()
	bubbles(t, notifier, open)
}

// RunNotifierOfPlaces is [RunNotifier] for a store that has places, too.
func RunNotifierOfPlaces(t *testing.T, open func(t *testing.T) driver.Store) {
	t.Helper()
	run(t, "notifier of places", notifierOfPlaces, open)
}

// RunNotifierOfPlacesInBubbles is [RunNotifierOfPlaces] in fake time.
func RunNotifierOfPlacesInBubbles(t *testing.T, open func(t *testing.T) driver.Store) {
	t.Helper()
	bubbles(t, notifierOfPlaces, open)
}

var notifier = []part{
	{"an attentive holder is told that a locker waits", (*suite).toldOfWaiting},
	{"a holder is told once, and again when the locker asks again", (*suite).toldOnce},
	{"a holder is not told of a try that does not wait", (*suite).notToldOfTries},
	{"a holder that is not attentive is not told", (*suite).notTold},
	{"a holder that has ended its notification is not told", (*suite).toldNoMore},
}

var notifierOfPlaces = []part{
	{"a holder is told that a locker waits for a place", (*suite).toldOfPlaces},
	{"all holders of places are told that a locker waits", (*suite).placesTold},
}

// hint is what a locker is told.
type hint struct{ key, owner string }

// attentive is a locker that is told what happens to the locks which it holds.
type attentive struct {
	*suite
	id    string
	first string // a key for which it is told in the beginning
	told  chan hint
	stop  func()
	names int
}

// attentive makes a locker that is told what happens from now on.
func (s *suite) attentive(name string) *attentive {
	s.Helper()
	a := &attentive{suite: s, id: s.key(name), told: make(chan hint, 1000)}
	a.stop = s.store.(driver.Notifier).Notify(a.id, func(key, owner string) { //nolint:forcetypeassert // the caller says so
		if key != "" {
			a.told <- hint{key, owner}
		}
	})
	s.Cleanup(a.stop)
	a.first = s.key("first of " + name)
	a.hold(a.first)
	waits := with("w1", s.exclusive(a.first, "", 0))
	s.until("the locker is told", func() bool {
		s.refuse(waits)
		return len(a.told) > 0
	})
	return a
}

// owner returns an owner of the locker that was never used.
func (a *attentive) owner() string {
	a.names++
	return driver.Attentive(fmt.Sprintf("%s:%d", a.id, a.names))
}

// hold takes a lock for a new owner of the locker.
func (a *attentive) hold(key string) (owner string) {
	a.Helper()
	owner = a.owner()
	a.grant(driver.AcquireRequest{Key: key, Owner: owner})
	return owner
}

// next returns what the locker is told next.
func (a *attentive) next() hint {
	a.Helper()
	select {
	case got := <-a.told:
		return got
	case <-time.After(patience):
		a.Fatal("the holder is not told that a locker waits")
		return hint{}
	}
}

// hears fails the test if the locker is told anything else than want until now. The servers
// of a store may tell it in another order.
func (a *attentive) hears(of string, want ...hint) {
	a.Helper()
	last := hint{key: a.key(fmt.Sprint("last of ", a.id, a.names))}
	last.owner = a.hold(last.key)
	a.refuse(a.exclusive(last.key, "w1", 0))
	for want = append(want, last); len(want) > 0; {
		got := a.next()
		i := slices.Index(want, got)
		switch {
		case i >= 0:
			want = slices.Delete(want, i, i+1)
		case got.key != a.first:
			a.Errorf("of %s the locker is told %q, and waits for %q", of, got, want)
		}
	}
}

func (s *suite) toldOfWaiting() {
	a, key := s.attentive("told"), s.key("waiting")
	owner := a.hold(key)
	waits := s.exclusive(key, "w1", 0)
	s.refuse(waits)
	a.hears("a locker that waits", hint{key, owner})
	s.release(driver.ReleaseRequest{Key: key, Owner: owner}, nil)
	waits.Owner = a.owner()
	s.grant(waits) // its name is an owner like any other
	if _, err := s.renew(driver.Renewal{Key: key, Owner: waits.Owner, TTL: lease}); err != nil {
		s.Errorf("a renewal of an attentive owner: %v", err)
	}
	s.release(driver.ReleaseRequest{Key: key, Owner: waits.Owner}, nil)
}

func (s *suite) toldOnce() {
	a, key := s.attentive("told"), s.key("once")
	owner := a.hold(key)
	s.refuse(s.exclusive(key, "w1~c", 0))
	a.hears("a locker that waits", hint{key, owner})
	s.refuse(s.exclusive(key, "w2~c", 0))
	a.hears("the second locker of the list")
	s.refuse(s.exclusive(key, "w1~k", 0)) // its patience has changed
	a.hears("a locker that asks again", hint{key, owner})
	s.refuse(s.exclusive(key, "w2~c", 0))
	a.hears("the second locker, which asks again", hint{key, owner})
}

func (s *suite) notToldOfTries() {
	a, key := s.attentive("told"), s.key("tries")
	a.hold(key)
	for range 2 {
		s.refuse(s.exclusive(key, "", 0))
	}
	a.hears("tries that do not wait")
}

func (s *suite) notTold() {
	a, key := s.attentive("told"), s.key("not told")
	s.grant(driver.AcquireRequest{Key: key, Owner: a.id + ":1000"})
	for range 2 {
		s.refuse(s.exclusive(key, "w1", 0))
	}
	a.hears("an owner that is not attentive")
}

func (s *suite) toldNoMore() {
	a, other, key := s.attentive("told"), s.attentive("other"), s.key("no more")
	a.hold(key)
	a.stop()
	s.refuse(s.exclusive(key, "w1", 0))
	other.hears("the locks of another locker")
	for len(a.told) > 0 {
		if got := <-a.told; got.key == key {
			s.Errorf("told %q after the end", got)
		}
	}
}

func (s *suite) toldOfPlaces() {
	a, key := s.attentive("told"), s.key("waits for a place")
	owner := a.hold(key)
	s.refuse(with("w1", s.place(key, 1)))
	a.hears("a locker that waits for a place", hint{key, owner})
}

func (s *suite) placesTold() {
	a := s.attentive("told")
	for name, waits := range map[string]func(key string) driver.AcquireRequest{
		"permit":    func(key string) driver.AcquireRequest { return with("w1", s.place(key, 3)) },
		"exclusive": func(key string) driver.AcquireRequest { return s.exclusive(key, "w1", lease) },
	} {
		key := s.key("places " + name)
		var want []hint
		for range 2 {
			place := s.place(key, 3)
			place.Owner = a.owner()
			s.enter(place)
			want = append(want, hint{key, place.Owner})
		}
		s.enter(s.place(key, 3)) // it is not attentive
		s.refuse(waits(key))
		a.hears("a locker that wants a "+name, want...)
	}
}
