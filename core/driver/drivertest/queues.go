package drivertest

import (
	"fmt"
	"time"

	"github.com/interlock-go/interlock/core/driver"
)

// invited waits for a signal that says how many places are free. Signals of which
// nothing is known, and late ones of watch, may come at any time.
func (s *suite) invited(signals <-chan driver.Signal, want driver.Signal) {
	s.Helper()
	for end := time.After(patience); ; {
		select {
		case got := <-signals:
			if got == want {
				return
			}
			if got.Next != "" && got.Next != "probe" {
				s.Fatalf("announced %+v; want %+v", got, want)
			}
		case <-end:
			s.Fatalf("not announced: %+v", want)
		}
	}
}

func (s *suite) lastReleaseAnnounces() {
	key := s.key("last release")
	signals, stop := s.watch(key)
	defer stop()
	owner, token := s.take(key, lease)
	s.refuse(with("w1", s.place(key, 0)))
	s.refuse(with("w2", s.place(key, 3)))
	s.refuse(s.exclusive(key, "w3", lease))
	s.refuse(with("w1", s.place(key, 0)))
	s.release(driver.ReleaseRequest{Key: key, Owner: owner, Token: token}, nil)
	s.announced(signals, "+w1,+w2,w3")
	first, _ := s.enter(with("w1", s.place(key, 0)))
	s.refuse(s.exclusive(key, "w3", lease))
	s.leave(first, "w1", nil)
	s.announced(signals, "w3,+w1")
}

func (s *suite) placeAnnounced() {
	key := s.key("place announced")
	signals, stop := s.watch(key)
	defer stop()
	var all []driver.AcquireRequest
	for range 3 {
		req, _ := s.enter(s.place(key, 3))
		all = append(all, req)
	}
	for _, id := range []string{"w1", "w2", "w3"} {
		s.refuse(with(id, s.place(key, 3)))
	}
	s.leave(all[0], "", nil)
	s.invited(signals, driver.Signal{Next: "+w1,+w2,+w3", Now: 1})
	if w1 := with("w1", s.place(key, 3)); !s.try(w1).Granted {
		s.Error("a locker that was called is refused")
	}
	lower := all[1]
	lower.AtMost = 1 // its process was told another number since
	s.leave(lower, "w4", nil)
	s.invited(signals, driver.Signal{Next: "+w2,+w3,+w4", Now: 1})
}

func (s *suite) listedAsWanted() {
	key := s.key("listed as")
	signals, stop := s.watch(key)
	defer stop()
	owner, token := s.take(key, lease)
	s.refuse(s.exclusive(key, "w1", lease))
	s.refuse(with("w2", s.place(key, 0)))
	s.refuse(with("w1", s.place(key, 0)))
	s.refuse(s.exclusive(key, "w2", lease))
	s.release(driver.ReleaseRequest{Key: key, Owner: owner, Token: token}, nil)
	s.announced(signals, "+w1,w2")
}

func (s *suite) placeKeepsRest() {
	key := s.key("place rest")
	signals, stop := s.watch(key)
	defer stop()
	first := with("w1", s.place(key, 0))
	first.Rest = "+w2,w3"
	s.enter(first)
	second := with("w2", s.place(key, 0))
	second.Rest = "+w1,w3" // of the same signal: there is a list by now
	s.enter(second)
	s.leave(first, "", nil)
	s.leave(second, "", nil)
	s.announced(signals, "w3")
}

func (s *suite) barrierStands() {
	key := s.key("barrier")
	sharer, _ := s.enter(s.place(key, 0))
	s.refuse(s.exclusive(key, "x1", lease))
	for _, id := range []string{"", "w1"} {
		if rep := s.refuse(with(id, s.place(key, 0))); rep.Full {
			s.Errorf("kept out by a waiting locker: %+v", rep)
		}
	}
	if known, contended := s.stays(sharer, lease); !known || !contended {
		s.Errorf("a holder's renewal: known %v, contended %v", known, contended)
	}
	s.leave(sharer, "", nil)
	s.grant(s.exclusive(key, "x1", lease))
}

func (s *suite) barrierOrder() {
	key := s.key("barrier order")
	holder, _ := s.enter(s.place(key, 1))
	s.refuse(with("w1", s.place(key, 1)))
	s.refuse(s.exclusive(key, "x1", lease))
	s.refuse(with("w2", s.place(key, 1)))
	s.enter(with("w1", s.place(key, 2))) // it was before the exclusive locker
	s.refuse(with("w2", s.place(key, 3)))
	s.enter(with("x1", s.place(key, 3))) // it wants a place now, and is not behind itself
	s.enter(with("w2", s.place(key, 4)))
	s.leave(holder, "", nil)
}

func (s *suite) barrierEnds() {
	key := s.key("barrier ends")
	s.enter(s.place(key, 0))
	s.refuse(s.exclusive(key, "", lease)) // it does not wait
	s.enter(s.place(key, 0))
	s.refuse(s.exclusive(key, "x0", 0))
	s.enter(s.place(key, 0))
	const longest = 1500 * time.Millisecond
	for _, left := range []time.Duration{short, lease} {
		// On a busy machine it may take more than one try.
		s.until("a locker that has left keeps places out for no longer than it said", func() bool {
			sent := time.Now()
			s.refuse(s.exclusive(key, "x1", left))
			next := s.place(key, 0)
			s.until("a locker that has left keeps places out no more", func() bool { return s.try(next).Granted })
			kept := time.Since(sent)
			if kept < min(left, longest)/2 {
				s.Errorf("with %v left places were kept out for %v", left, kept)
			}
			return left > longest || kept < longest
		})
	}
}

func (s *suite) crashedHolders() {
	s.prompt("crashed", func(key string) error {
		signals, stop := s.watch(key)
		defer stop()
		begin := time.Now()
		for range 2 {
			req := s.place(key, 2)
			req.TTL = short
			s.enter(req)
		}
		for _, req := range []driver.AcquireRequest{
			with("w1", s.place(key, 2)), s.exclusive(key, "w2", short), with("w3", s.place(key, 2)),
		} {
			if _, err := s.refused(req); err != nil {
				return err
			}
		}
		next := s.exclusive(key, "w2", short)
		s.until("the lock is free when all places have ended", func() bool { return s.try(next).Granted })
		if took := time.Since(begin); took > short+time.Second {
			return fmt.Errorf("free after %v, when a store may have forgotten the list", took)
		}
		s.release(driver.ReleaseRequest{Key: key, Owner: next.Owner}, nil)
		s.announced(signals, "+w1,+w3")
		return nil
	})
}

func (s *suite) releaseReentersForAPlace() {
	key := s.key("again")
	lists, stop := s.watch(key)
	defer stop()
	owner, token := s.take(key, lease)
	s.wait(key, "w1")
	s.release(driver.ReleaseRequest{Key: key, Owner: owner, Token: token, Waiter: "+own"}, nil)
	s.announced(lists, "w1,+own")
	for _, name := range []string{"own", "+own"} {
		req, _ := s.enter(s.place(key, 0))
		s.leave(req, name, nil)
		s.announced(lists, "+own")
	}
}
