package drivertest

import (
	"fmt"
	"testing"
	"time"

	"github.com/interlock-go/interlock/core/driver"
)

// RunQueuer tests a store that serves callers by their lines ([driver.Queuer]), and implements
// [driver.Notifier] and [driver.Ranger]. It calls open as [Run] does.
func RunQueuer(t *testing.T, open func(t *testing.T) driver.Store) {
	t.Helper()
	run(t, "lines", lines, open)
}

// RunQueuerInBubbles is [RunQueuer] in fake time, as [RunInBubbles] is [Run].
func RunQueuerInBubbles(t *testing.T, open func(t *testing.T) driver.Store) {
	t.Helper()
	bubbles(t, lines, open)
}

var lines = []part{
	{"the newest caller goes before the other lockers", (*suite).newestGoesFirst},
	{"a caller with a lower number must not wait", (*suite).olderIsOut},
	{"the newest caller takes a lock that is kept for others", (*suite).newestTakesTheTurn},
	{"numbers grow with and without a holder", (*suite).numbersGrow},
	{"a repeated try of a newest caller is granted once", (*suite).repeatedNewest},
	{"a caller that stands takes nothing", (*suite).standTakesNothing},
	{"a holder and a caller that is displaced are told", (*suite).newestIsTold},
	{"the newest caller keeps out new places, and is refused by places", (*suite).newestBesidePlaces},
	{"one caller waits", (*suite).oneWaits},
	{"the place of the only waiter ends", (*suite).oneWaitsForAWhile},
	{"the only waiter declines", (*suite).oneDeclines},
	{"no token of such a caller is minted twice under a clock behind", func(s *suite) { s.mintsAbove(driver.OneWaiter) }},
}

// newest makes a request of a caller that is the newest.
func (s *suite) newest(key, waiter string, number int64) driver.AcquireRequest {
	return driver.AcquireRequest{
		Key: key, Owner: s.owner(), Waiter: waiter, Left: lease, Line: driver.Newest, Number: number,
	}
}

// only makes a request of a caller that waits if no other does.
func (s *suite) only(key, waiter string, number int64) driver.AcquireRequest {
	return driver.AcquireRequest{Key: key, Owner: s.owner(), Waiter: waiter, Line: driver.OneWaiter, Number: number}
}

// waits makes a try that must be refused, of a caller that may wait. It returns its number.
func (s *suite) waits(req driver.AcquireRequest) (number int64) {
	s.Helper()
	rep := s.refuse(req)
	if rep.Out || rep.Number <= 0 || !rep.Listed {
		s.Fatalf("a caller that may wait: %+v", rep)
	}
	return rep.Number
}

// out makes a try whose caller must not wait.
func (s *suite) out(req driver.AcquireRequest) {
	s.Helper()
	if rep := s.refuse(req); !rep.Out {
		s.Errorf("a caller that must not wait: %+v", rep)
	}
}

// stand asks where a caller stands.
func (s *suite) stand(req driver.AcquireRequest) driver.Reply {
	s.Helper()
	req.Owner, req.TTL = "", lease
	rep, err := s.store.(driver.Queuer).Stand(s.Context(), req) //nolint:forcetypeassert // the caller says so
	if err != nil || rep.Granted {
		s.Fatalf("Stand(%q): %+v, %v", req.Key, rep, err)
	}
	return rep
}

func (s *suite) newestGoesFirst() {
	key := s.key("newest")
	lists, stop := s.watch(key)
	defer stop()
	owner, token := s.take(key, lease)
	s.wait(key, "w1", "w2")
	s.waits(s.newest(key, "n1~b", 0))
	s.waits(s.newest(key, "n2~b", 0))
	s.wait(key, "w3")
	s.release(driver.ReleaseRequest{Key: key, Owner: owner, Token: token}, nil)
	s.announced(lists, "n2~b,n1~b,w1,w2,w3")
}

func (s *suite) olderIsOut() {
	key := s.key("older")
	owner, token := s.take(key, lease)
	first := s.waits(s.newest(key, "n1~b", 0))
	if again := s.waits(s.newest(key, "n1~b", first)); again != first {
		s.Errorf("the number of a caller changes from %d to %d", first, again)
	}
	second := s.waits(s.newest(key, "n2~b", 0))
	s.out(s.newest(key, "n1~b", first))
	if !s.stand(s.newest(key, "n1~b", first)).Out || s.stand(s.newest(key, "n2~b", second)).Out {
		s.Error("Stand lets another caller wait")
	}
	s.release(driver.ReleaseRequest{Key: key, Owner: owner, Token: token}, nil)
	s.out(s.newest(key, "n1~b", first)) // also of a lock that is free
	rep := s.grant(s.newest(key, "n2~b", second))
	s.out(s.newest(key, "n1~b", first))
	if rep.Number != second {
		s.Errorf("the number of a caller changes from %d to %d", second, rep.Number)
	}
}

func (s *suite) newestTakesTheTurn() {
	key := s.key("turn")
	lists, stop := s.watch(key)
	defer stop()
	owner, token := s.take(key, lease)
	s.refuse(s.exclusive(key, "w1~q", 0))
	first := s.waits(s.newest(key, "n1~q", 0))
	s.release(driver.ReleaseRequest{Key: key, Owner: owner, Token: token}, nil)
	s.announced(lists, "n1~q,w1~q")
	req := s.newest(key, "n2~b", 0)
	rep := s.grant(req)
	if rep.Number <= first {
		s.Errorf("the number %d after %d", rep.Number, first)
	}
	s.out(s.newest(key, "n1~q", first))
	s.release(driver.ReleaseRequest{Key: key, Owner: req.Owner, Token: rep.Token}, nil)
	s.announced(lists, "n1~q,w1~q")
}

func (s *suite) numbersGrow() {
	key := s.key("numbers")
	last := int64(0)
	for i := range 5 {
		req := s.newest(key, "n1~b", 0)
		rep := s.grant(req)
		if rep.Number <= last {
			s.Errorf("the number %d after %d", rep.Number, last)
		}
		last = rep.Number
		if rep := s.refuse(s.exclusive(key, "", 0)); rep.Number != 0 || rep.Out {
			s.Errorf("a caller in turn gets a number: %+v", rep)
		}
		if i%2 == 0 {
			number := s.waits(s.newest(key, "n2~b", 0))
			if number <= last {
				s.Errorf("the number %d after %d", number, last)
			}
			last = number
		}
		s.release(driver.ReleaseRequest{Key: key, Owner: req.Owner, Token: rep.Token}, nil)
	}
}

func (s *suite) repeatedNewest() {
	key := s.key("repeated")
	req := s.newest(key, "n1~b", 0)
	first, second := s.grant(req), s.grant(req)
	if first.Token != second.Token || s.stand(s.newest(key, "", second.Number)).Out {
		s.Errorf("%+v, and then %+v", first, second)
	}
	s.waits(s.newest(key, "n2~b", 0))
	if !s.stand(s.newest(key, "", s.grant(req).Number)).Out {
		s.Error("a holder whose request is repeated is not superseded any more")
	}
}

func (s *suite) standTakesNothing() {
	key := s.key("stand")
	number := s.stand(s.newest(key, "n1~b", 0)).Number
	owner, token := s.take(key, lease)
	rep := s.stand(s.newest(key, "n1~b", number))
	if rep.Out || !rep.Listed || rep.Number != number {
		s.Errorf("a caller with the number %d stands: %+v", number, rep)
	}
	if rep := s.stand(s.newest(key, "", number)); rep.Out || rep.Listed {
		s.Errorf("a question: %+v", rep)
	}
	if s.stand(s.only(key, "o1~b", 0)).Out {
		s.Error("the only waiter must not wait")
	}
	if got := s.release(driver.ReleaseRequest{Key: key, Owner: owner, Token: token}, nil); got != "n1~b,o1~b" {
		s.Errorf("%q wait", got)
	}
}

func (s *suite) newestIsTold() {
	a, b, key := s.attentive("told"), s.attentive("displaced"), s.key("told of newest")
	owner := a.hold(key)
	s.waits(s.newest(key, b.id+"~b", 0))
	a.hears("the newest caller", hint{key, owner})
	s.refuse(s.exclusive(key, "w1~b", 0))
	s.waits(s.newest(key, "n2~b", 0))
	a.hears("another newest caller", hint{key, owner})
	b.hears("a newer caller", hint{key, driver.Attentive(b.id + ":0")})
	s.stand(s.newest(key, "n3~b", 0))
	a.hears("a caller of its own") // it knows
	b.hears("a caller that displaces another locker")
}

func (s *suite) newestBesidePlaces() {
	key := s.key("places")
	if _, err := s.store.Acquire(s.Context(), s.place(key, 0)); err != nil {
		return // the store has no places
	}
	place, _ := s.enter(s.place(key, 0))
	s.wait(key, "w1")
	s.waits(s.newest(key, "n1~b", 0))
	s.refuse(with("r1", s.place(key, 0)))
	s.leave(place, "", nil)
}

// outBeside makes a request whose caller must not wait, because another caller does. It returns an
// error if the caller may wait, as it may when that was too long ago, for prompt.
func (s *suite) outBeside(req driver.AcquireRequest) error {
	if rep := s.refuse(req); !rep.Out {
		return fmt.Errorf("a second caller may wait: %+v", rep)
	}
	return nil
}

func (s *suite) oneWaits() {
	key := s.prompt("one", func(key string) error {
		s.grant(driver.AcquireRequest{Key: key, Owner: "holder of " + key})
		number := s.waits(s.only(key, "o1~b", 0))
		s.waits(s.only(key, "o1~b", number))
		s.refuse(s.exclusive(key, "w1~b", 0)) // others wait as they like
		return s.outBeside(s.only(key, "o2~b", 0))
	})
	s.release(driver.ReleaseRequest{Key: key, Owner: "holder of " + key}, nil)
	if rep := s.grant(s.only(key, "o1~b", 1)); rep.Number != 0 {
		s.Errorf("the only waiter holds the lock, and has the number %d", rep.Number)
	}
	s.waits(s.only(key, "o2~b", 0)) // the holder is no waiter any more
}

func (s *suite) oneWaitsForAWhile() {
	key := s.key("a while")
	s.take(key, lease)
	begin := time.Now()
	s.waits(s.only(key, "dead~b", 0))
	s.until("another caller may wait", func() bool { return !s.refuse(s.only(key, "o1~b", 0)).Out })
	if took := time.Since(begin); took < time.Second {
		s.Errorf("the only waiter is one no more after %v", took)
	}
}

func (s *suite) oneDeclines() {
	key := s.key("declines")
	s.take(key, lease)
	for i := range 3 {
		name := fmt.Sprint("o", i)
		s.until("another caller may wait", func() bool { return !s.refuse(s.only(key, name+"~b", 0)).Out })
		s.decline(key, name)
	}
}
