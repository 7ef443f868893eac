package drivertest

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/interlock-go/interlock/core/driver"
)

// RunTurns tests a store that keeps a lock which became free for the lockers that wait
// ([driver.Ranger]). It calls open as [Run] does.
func RunTurns(t *testing.T, open func(t *testing.T) driver.Store) {
	t.Helper()
	run(t, "turns", turns, open)
}

// RunTurnsInBubbles is [RunTurns] in fake time, as [RunInBubbles] is [Run].
func RunTurnsInBubbles(t *testing.T, open func(t *testing.T) driver.Store) {
	t.Helper()
	bubbles(t, turns, open)
}

// RunTurnsOfPlaces is [RunTurns] for a store that has places, too.
func RunTurnsOfPlaces(t *testing.T, open func(t *testing.T) driver.Store) {
	t.Helper()
	run(t, "turns of places", turnsOfPlaces, open)
}

// RunTurnsOfPlacesInBubbles is [RunTurnsOfPlaces] in fake time.
func RunTurnsOfPlacesInBubbles(t *testing.T, open func(t *testing.T) driver.Store) {
	t.Helper()
	bubbles(t, turnsOfPlaces, open)
}

var turnsOfPlaces = []part{
	{"a lock is kept for lockers that want places", (*suite).placesKept},
	{"a called locker may want a place by now", (*suite).wantsAPlaceNow},
}

// turns lists the parts of the contract that are about turns.
var turns = []part{
	{"a lock that became free is kept for the lockers of its list", (*suite).keptForTheListed},
	{"a locker that does not come in time loses its turn", (*suite).turnsPass},
	{"a lock is not kept for lockers that do not come", (*suite).reservationEnds},
	{"four lockers have turns", (*suite).fourTurns},
	{"a lock is not kept for a locker without patience", (*suite).notKept},
	{"the name of a locker changes with its patience", (*suite).renamed},
	{"a lock that is kept has no owner", (*suite).keptWithoutOwner},
	{"a locker that declines gives its turn to the next", (*suite).declines},
	{"a locker that declines is called no more", (*suite).leavesTheList},
}

const (
	long  = "~q" // a second
	quick = "~a" // 5 ms
)

// freed makes a lock of a new key with waiting lockers that was just released.
func (s *suite) freed(key string, waiters ...string) {
	s.Helper()
	owner, token := s.take(key, lease)
	s.wait(key, waiters...)
	s.release(driver.ReleaseRequest{Key: key, Owner: owner, Token: token}, nil)
}

// within does something with a lock that is released in the beginning, and is kept for a
// second. On a busy machine it may take more than one round, each with a key of its own.
func (s *suite) within(name string, waiters []string, f func(key string) error) {
	s.Helper()
	for n, end := 0, time.Now().Add(patience); ; n++ {
		key, begin := s.key(fmt.Sprint(name, n)), time.Now()
		s.freed(key, waiters...)
		err := f(key)
		if err == nil {
			return
		}
		if now := time.Now(); now.Before(begin.Add(time.Second)) || now.After(end) {
			s.Fatalf("%v after the lock was held: %v", now.Sub(begin), err)
		}
	}
}

// comes makes a try of a waiting locker.
func (s *suite) comes(key, waiter string) driver.Reply {
	s.Helper()
	return s.try(driver.AcquireRequest{Key: key, Owner: s.owner(), Waiter: waiter})
}

// outside returns an error unless a try is refused for a lock that is kept.
func (s *suite) outside(key, waiter string, most time.Duration) error {
	s.Helper()
	switch rep := s.comes(key, waiter); {
	case rep.Granted:
		return fmt.Errorf("%q got the lock before the lockers that were called", waiter)
	case rep.Holder != "" || rep.TTL <= 0 || rep.TTL > most || rep.Listed != (waiter != ""):
		return fmt.Errorf("%q is refused with %+v; want no holder, the list, and at most %v", waiter, rep, most)
	}
	return nil
}

func (s *suite) keptForTheListed() {
	s.within("kept", []string{"w1" + long, "w2" + long}, func(key string) error {
		err := errors.Join(
			s.outside(key, "", 2*time.Second), s.outside(key, "w3"+long, 2*time.Second), s.outside(key, "w2"+long, time.Second),
		)
		if err != nil {
			return err
		}
		if !s.comes(key, "w1"+long).Granted {
			return errors.New("the first of the list is refused")
		}
		if rep := s.comes(key, "w1"+long); rep.Granted || rep.Holder == "" {
			return fmt.Errorf("a held lock: %+v", rep)
		}
		return nil
	})
	key := s.key("rest")
	signals, stop := s.watch(key)
	defer stop()
	s.freed(key, "w1"+long, "w2"+long, "w3"+long)
	s.announced(signals, "w1"+long+",w2"+long+",w3"+long)
	owner := s.owner()
	token := s.grant(driver.AcquireRequest{Key: key, Owner: owner, Waiter: "w1" + long}).Token
	if waiting := s.release(driver.ReleaseRequest{Key: key, Owner: owner, Token: token, Waiter: "w1" + long}, nil); waiting != "w2"+long+",w3"+long+",w1"+long {
		s.Errorf("%q wait", waiting)
	}
	s.announced(signals, "w2"+long+",w3"+long+",w1"+long)

	// The releasing locker can be the first of others: a newest caller has put it there.
	key = s.key("first")
	owner, token = s.take(key, lease)
	s.wait(key, "w1"+long, "w2"+long)
	if waiting := s.release(driver.ReleaseRequest{Key: key, Owner: owner, Token: token, Waiter: "w1" + long}, nil); waiting != "w1"+long+",w2"+long {
		s.Errorf("%q wait", waiting)
	}
}

func (s *suite) turnsPass() {
	key := s.key("pass")
	s.freed(key, "w1"+quick, "w2"+long, "w3"+long)
	s.until("the second locker gets the lock after the patience of the first", func() bool {
		return s.comes(key, "w2"+long).Granted
	})
	if rep := s.comes(key, "w1"+quick); rep.Granted || !rep.Listed || rep.Holder == "" {
		s.Errorf("a held lock: %+v", rep)
	}
}

func (s *suite) reservationEnds() {
	key := s.key("ends")
	s.freed(key, "w1"+quick, "w2"+quick)
	s.until("another locker gets the lock in the end", func() bool { return s.comes(key, "").Granted })
}

func (s *suite) fourTurns() {
	s.within("four", []string{"w1" + quick, "w2" + quick, "w3" + quick, "w4" + long, "w5" + long}, func(key string) error {
		return s.outside(key, "w5"+long, 1015*time.Millisecond)
	})
}

func (s *suite) notKept() {
	key := s.key("not kept")
	s.freed(key, "w1", "w2"+long)
	s.take(key, lease)
}

func (s *suite) wantsAPlaceNow() {
	key := s.key("wants a place now")
	s.freed(key, "w1"+long, "w2"+long)
	first, _ := s.enter(with("w1"+long, s.place(key, 1)))
	if rep := s.comes(key, "w2"+long); rep.Granted || rep.Holder != first.Owner || !rep.Listed {
		s.Errorf("beside a place: %+v", rep)
	}
}

func (s *suite) placesKept() {
	for n, end := 0, time.Now().Add(patience); ; n++ {
		key := s.key(fmt.Sprint("places kept", n))
		held, _ := s.enter(s.place(key, 1))
		s.refuse(with("w1"+long, s.place(key, 1)))
		s.refuse(with("w2"+long, s.place(key, 1)))
		s.refuse(s.exclusive(key, "w3"+long, 0))
		begin := time.Now()
		s.leave(held, "", nil)
		if !s.comes(key, "w3"+long).Granted && !s.try(with("w2"+long, s.place(key, 1))).Granted &&
			!s.try(with("w4"+long, s.place(key, 2))).Granted && s.try(with("w2"+long, s.place(key, 2))).Granted {
			return // as many come together as there are places
		}
		if now := time.Now(); now.Before(begin.Add(time.Second)) || now.After(end) {
			s.Fatalf("%v after the release another locker got the lock than the lockers that were called", now.Sub(begin))
		}
	}
}

func (s *suite) renamed() {
	key := s.key("renamed")
	signals, stop := s.watch(key)
	defer stop()
	owner, token := s.take(key, lease)
	s.wait(key, "w1", "w2"+quick, "w1"+long, "w2"+long, "w2"+quick)
	s.release(driver.ReleaseRequest{Key: key, Owner: owner, Token: token}, nil)
	s.announced(signals, "w1"+long+",w2"+quick)
}

// ranger returns the store as what it has to be.
func (s *suite) ranger() driver.Ranger {
	s.Helper()
	r, ok := s.store.(driver.Ranger)
	if !ok {
		s.Fatal("the store is no driver.Ranger")
	}
	return r
}

// decline takes a locker out of a list.
func (s *suite) decline(key, waiter string) {
	s.Helper()
	if err := s.ranger().Decline(s.Context(), key, waiter); err != nil {
		s.Errorf("decline: %v", err)
	}
}

func (s *suite) declines() {
	s.within("declines", []string{"w1" + long, "w2" + long, "w3" + long}, func(key string) error {
		if err := s.outside(key, "w2"+long, time.Second); err != nil {
			return err
		}
		s.decline(key, "w1")
		s.until("the next has its turn", func() bool { return s.comes(key, "w2"+long).Granted })
		return nil
	})
	key := s.key("told")
	signals, stop := s.watch(key)
	defer stop()
	s.freed(key, "w1"+long, "w2"+quick)
	s.announced(signals, "w1"+long+",w2"+quick)
	s.decline(key, "w1")
	s.announced(signals, "w2"+quick)
}

func (s *suite) leavesTheList() {
	key := s.key("leaves")
	signals, stop := s.watch(key)
	defer stop()
	owner, token := s.take(key, lease)
	s.wait(key, "w1"+long)
	s.decline(key, "w2")
	s.decline(key, "w1"+quick)
	s.until("the name is gone", func() bool {
		contended, err := s.renew(driver.Renewal{Key: key, Owner: owner, TTL: lease})
		return err == nil && !contended
	})
	s.release(driver.ReleaseRequest{Key: key, Owner: owner, Token: token, Waiter: "w3" + long}, nil)
	s.announced(signals, "w3"+long)
}

func (s *suite) keptWithoutOwner() {
	s.within("no owner", []string{"w1" + long}, func(key string) error {
		other := s.owner()
		_, err := s.renew(driver.Renewal{Key: key, Owner: other, TTL: lease})
		if !errors.Is(err, driver.ErrNotOwner) {
			return fmt.Errorf("a renewal: %w", err)
		}
		s.release(driver.ReleaseRequest{Key: key, Owner: other, Token: 1}, driver.ErrNotOwner)
		return s.outside(key, "", time.Second)
	})
}
