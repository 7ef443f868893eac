package recordtest

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"sync"
	"time"

	"github.com/interlock-go/interlock/core/driver"
	"github.com/interlock-go/interlock/core/idempotency/record"
)

// An envelope is never empty: it begins with a version.
func (s *suite) byteForByte() {
	all := make([]byte, 256)
	for i := range all {
		all[i] = byte(i)
	}
	large := make([]byte, 1<<20)
	rand.Read(large)
	for _, envelope := range [][]byte{
		{0},
		{0, 0, 0},
		{'\n'},
		all, bytes.Repeat(all, 100), []byte(`\x00 \000 "'` + "\u0000\u2028\xc0\xaf\xff"),
		[]byte("{1,2}"), []byte("null"), large, make([]byte, 1<<20),
	} {
		a := s.claimed()
		s.stored(a.commit(envelope))
		same(s, s.find(a, record.StateCompleted).Response, string(envelope)) // to its own token, too
		same(s, s.find(a.again(), record.StateCompleted, strict, tombstone, waits).Response, string(envelope))
		s.late(a.again(), record.StateCompleted, string(envelope))
	}
}

func (s *suite) unavailable() {
	a := s.claimed()
	s.stored(a.commit(nil))
	for _, b := range []attempt{a, a.again()} {
		same(s, s.find(b, record.StateUnavailable).Response, "")
	}
	s.late(a.again(), record.StateUnavailable, "")
	b := s.unknown()
	s.stored(b.commit(nil))
	s.find(b.again(), record.StateUnavailable)
}

func (s *suite) repeatedCommit() {
	for _, envelope := range [][]byte{[]byte("answer"), nil} {
		a := s.claimed()
		for range 3 {
			s.stored(a.commit(envelope))
		}
		if err := s.extend(a, long, kept); err != nil {
			s.Errorf("Extend of a claim whose response is stored: %v", err)
		}
		s.abandon(a, driver.ErrNotOwner)
		rep := s.ask(a.again())
		if done := rep.State == record.StateCompleted || rep.State == record.StateUnavailable; !done {
			s.Errorf("after commits of one token: %s", name(rep.State))
		}
		same(s, rep.Response, string(envelope))
	}
	a := s.claimed()
	var all sync.WaitGroup
	for range many {
		all.Go(func() {
			if rep := s.commit(a.commit([]byte("answer"))); !rep.Stored() {
				s.Errorf("commits of one token at the same time: %s", name(rep.State))
			}
		})
	}
	all.Wait()
	s.replayed(a, "answer")
}

func (s *suite) commitGone() {
	a := s.claimed()
	s.forget(a)
	s.stored(a.commit([]byte("answer")))
	s.stored(a.commit([]byte("answer")))
	s.replayed(a, "answer")
	s.find(a.other(), record.StateMismatch)
	b := s.claimed()
	s.forget(b)
	s.stored(b.commit(nil))
	s.find(b.again(), record.StateUnavailable)
	for _, done := range []attempt{a, b} {
		if err := s.store.Resolve(s.Context(), done.again().resolution([]byte("found"))); !errors.Is(err, record.ErrNotUnknown) {
			s.Errorf("Resolve of a record that a commit wrote anew: %v; want ErrNotUnknown", err)
		}
	}
}

func (s *suite) commitOthers() {
	a := s.claimed()
	s.forget(a)
	b := s.grant(a.other(), 1) // another request with the same key
	s.late(a, record.StateMismatch, "")
	s.powerless(a)
	s.find(b.again(), record.StateInFlight)
	s.stored(b.commit([]byte("theirs")))
	s.late(a, record.StateMismatch, "")
	s.replayed(b, "theirs")

	c := s.claimed()
	s.forget(c)
	d := s.grant(c.again(), 1)
	s.late(c, record.StateInFlight, "")
	s.stored(d.commit([]byte("second")))
	s.late(c, record.StateCompleted, "second")

	e := s.unknown()
	s.late(e.again(), record.StateInFlight, "") // of another token, lapsed or not
	s.stored(e.commit([]byte("answer")))
}

func (s *suite) releaseOnce() {
	a, b := s.claimed(), s.claimed()
	for what, request := range map[string]func(release func(context.Context)){
		"a commit that is stored":       func(release func(context.Context)) { s.releasing(a, release) },
		"a commit that is too late":     func(release func(context.Context)) { s.releasing(b.again(), release) },
		"an abandon":                    func(release func(context.Context)) { s.abandoning(s.claimed(), release) },
		"an abandon of no claim":        func(release func(context.Context)) { s.abandoning(first(), release) },
		"an abandon of another's claim": func(release func(context.Context)) { s.abandoning(b.again(), release) },
	} {
		calls := 0
		request(func(ctx context.Context) {
			if ctx == nil {
				s.Errorf("%s: Release is called without a context", what)
			}
			calls++
		})
		if calls != 1 {
			s.Errorf("%s: Release was called %d times before it returned", what, calls)
		}
	}
	s.replayed(a, "answer")
}

func (s *suite) releasing(a attempt, release func(context.Context)) {
	req := a.commit([]byte("answer"))
	req.Release = release
	s.commit(req)
}

func (s *suite) abandoning(a attempt, release func(context.Context)) {
	_ = s.store.Abandon(s.Context(), record.AbandonRequest{
		ID: a.id, Token: a.token, Deadline: time.Now().Add(patience), Release: release,
	})
}

func (s *suite) abandonTakeOver() {
	a := s.lapsed()
	b := s.grant(a.again(), 2)
	s.abandon(b, nil)
	s.abandon(b, driver.ErrNotOwner)
	s.powerless(b)
	s.find(a.other(), record.StateMismatch)
	c := s.grant(a.again(), 2) // not 1: the first attempt has been begun
	s.abandon(c, nil)
	s.stored(a.commit([]byte("late, and the only one")))
	s.replayed(a, "late, and the only one")

	d := s.lapsed()
	e := s.grant(d.again(), 2, leased(tiny))
	s.lapse(e)
	f := s.grant(d.again(), 3)
	s.abandon(f, nil)
	s.powerless(d)
	s.powerless(e)
	s.grant(d.again(), 3)
}

func (s *suite) abandonFrees() {
	s.abandon(first(), driver.ErrNotOwner)
	a := s.claimed()
	s.abandon(a.again(), driver.ErrNotOwner)
	s.find(a.again(), record.StateInFlight)
	s.abandon(a, nil)
	s.powerless(a)
	b := s.grant(a.other(), 1, tombstone) // as if there had been nothing
	s.powerless(a)
	s.find(b.again(), record.StateInFlight)
	s.stored(b.commit([]byte("answer")))
	s.abandon(b, driver.ErrNotOwner) // it is no claim any more
	s.replayed(b, "answer")
	for _, c := range []attempt{s.unknown(), s.lapsed(strict)} {
		s.abandon(c, nil)
		s.grant(c.again(), 1)
	}
}
