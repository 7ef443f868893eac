package recordtest

import (
	"errors"
	"sync"
	"time"

	"github.com/interlock-go/interlock/core/driver"
	"github.com/interlock-go/interlock/core/idempotency/record"
)

// races makes claims that have lapsed, and two requests for each of them at the same
// time.
func (s *suite) races(opts []option, request func(a attempt) (one, two func())) {
	attempts := make([]attempt, many)
	for i := range attempts {
		attempts[i] = s.claimed(append([]option{leased(tiny)}, opts...)...)
	}
	for _, a := range attempts {
		s.lapse(a)
	}
	for _, a := range attempts {
		one, two := request(a)
		var both sync.WaitGroup
		start := make(chan struct{})
		for _, f := range []func(){one, two} {
			both.Go(func() {
				<-start
				f()
			})
		}
		close(start)
		both.Wait()
	}
}

func (s *suite) commitOrTakeOver() {
	var check []func()
	s.races(nil, func(a attempt) (one, two func()) {
		var commit record.CommitReply
		var claim record.ClaimReply
		check = append(check, func() {
			switch {
			case commit.Stored() && claim.State == record.StateCompleted:
				same(s, claim.Response, "answer")
				s.replayed(a, "answer")
			case commit.State == record.StateInFlight && claim.State == record.StateGranted:
				s.find(a.again(), record.StateInFlight)
			default:
				s.Errorf("a commit: %s, and a take-over at the same time: %s", name(commit.State), name(claim.State))
			}
		})
		return func() { commit = s.commit(a.commit([]byte("answer"))) }, func() { claim = s.ask(a.again()) }
	})
	for _, f := range check {
		f()
	}
}

func (s *suite) markOrTakeOver() {
	s.races(nil, func(a attempt) (one, two func()) {
		marked := make(chan error, 1)
		one = func() {
			marked <- s.store.Mark(s.Context(), record.MarkRequest{
				ID: a.id, Token: a.token, Lease: long, Retention: kept, Deadline: time.Now().Add(patience),
			})
		}
		two = func() {
			rep, err := s.ask(a.again()), <-marked
			switch {
			case err == nil && rep.State == record.StateInFlight:
			case errors.Is(err, driver.ErrNotOwner) && rep.State == record.StateGranted:
			default:
				s.Errorf("a mark: %v, and a take-over at the same time: %s", err, name(rep.State))
			}
		}
		return one, two
	})
}

func (s *suite) commitGoneOnce() {
	for range many {
		a := first()
		b := a.again()
		var replies [2]record.CommitReply
		var both sync.WaitGroup
		start := make(chan struct{})
		for i, c := range []attempt{a, b} {
			both.Go(func() {
				<-start
				replies[i] = s.commit(c.commit([]byte(c.token)))
			})
		}
		close(start)
		both.Wait()
		winner, loser := a, replies[1]
		if replies[1].State == record.StateGranted {
			winner, loser = b, replies[0]
		}
		if loser.State != record.StateCompleted || loser.Response != winner.token {
			s.Fatalf("commits of two tokens of a record that is gone: %s and %s", name(replies[0].State), name(replies[1].State))
		}
		s.replayed(a, winner.token)
	}
}

func (s *suite) resolveOrCommit() {
	var check []func()
	s.races([]option{strict}, func(a attempt) (one, two func()) {
		var commit record.CommitReply
		var resolved error
		check = append(check, func() {
			switch {
			case commit.Stored() && errors.Is(resolved, record.ErrNotUnknown):
				s.replayed(a, "answer")
			case commit.State == record.StateCompleted && resolved == nil:
				same(s, commit.Response, "found out")
				s.replayed(a, "found out")
			default:
				s.Errorf("a commit: %s, and a resolution at the same time: %v", name(commit.State), resolved)
			}
		})
		return func() { commit = s.commit(a.commit([]byte("answer"))) }, func() { resolved = s.resolve(a.again(), []byte("found out")) }
	})
	for _, f := range check {
		f()
	}
	s.races([]option{strict}, func(a attempt) (one, two func()) {
		done, b, c := make(chan error, 1), a.again(), a.again()
		one = func() { done <- s.resolve(b, []byte(b.token)) }
		two = func() {
			err2 := s.resolve(c, []byte(c.token))
			err1 := <-done
			won, lost := b, err2
			if err1 != nil {
				won, lost = c, err1
			}
			if !errors.Is(lost, record.ErrNotUnknown) || err1 != nil && err2 != nil {
				s.Errorf("two resolutions at the same time: %v and %v", err1, err2)
			} else if got := s.ask(a.again()); got.Response != won.token {
				s.Errorf("the resolution that failed is stored: %s", name(got.State))
			}
		}
		return one, two
	})
}
