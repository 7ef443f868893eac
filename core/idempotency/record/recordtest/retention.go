package recordtest

import (
	"time"

	"github.com/interlock-go/interlock/core/idempotency/record"
)

// expired is an attempt after its response has expired and left a tombstone.
func (s *suite) expired() attempt {
	s.Helper()
	a := s.claimed(leased(tiny), retained(brief))
	req := a.commit([]byte("answer"))
	req.Retention, req.Tombstone = brief, kept
	s.stored(req)
	s.expires(a)
	return a
}

// prompt makes a claim and does something with it before its retention has ended. On a
// busy machine it may take more than one try.
func (s *suite) prompt(retention time.Duration, opts []option, f func(a attempt) error) attempt {
	s.Helper()
	for end := time.Now().Add(patience); ; {
		begin := time.Now()
		a := s.claimed(append([]option{leased(tiny), retained(retention)}, opts...)...)
		err := f(a)
		if err == nil {
			return a
		}
		if now := time.Now(); now.Before(begin.Add(retention)) || now.After(end) {
			s.Fatalf("%v after a claim that is kept for %v: %v", now.Sub(begin), retention, err)
		}
	}
}

// resolved is an attempt with an outcome that was unknown, and was found out.
func (s *suite) resolved(claimed, retention, tombstone time.Duration) attempt {
	s.Helper()
	return s.prompt(claimed, []option{strict}, func(a attempt) error {
		time.Sleep(2 * tiny)
		req := a.again().resolution([]byte("answer"))
		req.Retention, req.Tombstone = retention, tombstone
		return s.store.Resolve(s.Context(), req)
	})
}

// expires waits until the response of a record has expired.
func (s *suite) expires(a attempt) {
	s.Helper()
	s.until("a claim finds that the record has expired", func() bool {
		switch rep := s.ask(a.again(), tombstone); rep.State {
		case record.StateExpired:
			return true
		case record.StateCompleted, record.StateUnavailable:
		default:
			s.Fatalf("a record before its end: %s", name(rep.State))
		}
		return false
	})
}

func (s *suite) retentionEnds() {
	a := s.claimed(leased(tiny), retained(brief))
	s.until("a claim that stays silent is forgotten", func() bool {
		rep := s.ask(a.again(), strict) // takes nothing over
		if rep.State == record.StateGranted && rep.Generation != 1 {
			s.Fatalf("a record that is free again begins with generation %d", rep.Generation)
		}
		return rep.State == record.StateGranted
	})
	s.powerless(a)
	for _, response := range [][]byte{[]byte("answer"), nil} {
		b := s.claimed(leased(tiny), retained(brief))
		req := b.commit(response)
		req.Retention = brief
		s.stored(req)
		c := b.other()
		s.until("a record is free for another request", func() bool {
			rep := s.ask(c)
			if rep.State != record.StateGranted && rep.State != record.StateMismatch {
				s.Fatalf("another request, before and after the end of a record: %s", name(rep.State))
			}
			return rep.State == record.StateGranted
		})
		s.powerless(b)
		s.late(b, record.StateMismatch, "")
	}
}

func (s *suite) retentionKept() {
	claimed := func(retention time.Duration) attempt { return s.claimed(leased(tiny), retained(retention)) }
	committed := func(claim, commit time.Duration) attempt {
		a := claimed(claim)
		req := a.commit([]byte("answer"))
		req.Retention = commit
		s.stored(req)
		return a
	}
	completed := map[string]attempt{
		"lengthened by Commit": committed(brief, kept), "shortened by Commit": committed(kept, brief),
	}
	open := map[string]attempt{}
	for what, retention := range map[string][2]time.Duration{"lengthened": {brief, kept}, "shortened": {kept, brief}} {
		open[what+" by Extend"] = s.prompt(retention[0], nil, func(a attempt) error { return s.extend(a, short, retention[1]) })
		open[what+" by Mark"] = s.prompt(retention[0], nil, func(a attempt) error {
			return s.store.Mark(s.Context(), record.MarkRequest{
				ID: a.id, Token: a.token, Lease: short, Retention: retention[1], Deadline: time.Now().Add(patience),
			})
		})
		completed[what+" by Resolve"] = s.resolved(retention[0], retention[1], 0)
	}
	over := claimed(kept)
	s.lapse(over)
	open["shortened by a take-over"] = s.grant(over.again(), 2, leased(tiny), retained(brief))
	time.Sleep(2 * brief) // past the end that a shortened retention would have
	for what, a := range completed {
		if rep := s.ask(a.again()); rep.State != record.StateCompleted || rep.Response != "answer" {
			s.Errorf("%s: %s, %.60q", what, name(rep.State), rep.Response)
		}
	}
	for what, a := range open {
		if rep := s.ask(a.other()); rep.State != record.StateMismatch {
			s.Errorf("%s: another request finds: %s", what, name(rep.State))
		}
	}
}

// longestTimes uses the longest times that the engine asks for. In no store may they overflow,
// nor two of them added to the present time.
func (s *suite) longestTimes() {
	endless := []option{leased(longestLease), retained(longestKept), tombstone}
	held := s.claimed(endless...)
	if err := s.extend(held, longestLease, longestKept); err != nil {
		s.Errorf("Extend: %v", err)
	}
	if rep := s.find(held.again(), record.StateInFlight, endless...); rep.Left < longestLease-time.Hour {
		s.Errorf("a claim with a lease of %v is protected for %v", longestLease, rep.Left)
	}
	done := held.commit([]byte("answer"))
	done.Retention, done.Tombstone = longestKept, longestKept
	s.stored(done)
	resolved := s.resolved(brief, longestKept, longestKept)
	time.Sleep(2 * brief)
	s.find(held.again(), record.StateCompleted, endless...)
	s.find(resolved.again(), record.StateCompleted, endless...)
}

func (s *suite) tombstones() {
	s.grant(first(), 1, tombstone) // there may be one, and there is none
	a := s.expired()
	for _, b := range []attempt{a, a.again(), a.other()} {
		if rep := s.find(b, record.StateExpired, tombstone); rep.Response != "" {
			s.Errorf("an expired record has a response of %d bytes", len(rep.Response))
		}
	}
	s.powerless(a)
	// A rule that has no tombstones takes the key, and does not end the tombstone.
	b := s.grant(a.other(), 1)
	s.abandon(b, nil)
	s.find(a.again(), record.StateExpired, tombstone)
	c := s.grant(a.other(), 1, strict, leased(tiny))
	s.lapse(c)
	if err := s.store.Resolve(s.Context(), c.again().resolution(nil)); err != nil {
		s.Errorf("Resolve without an envelope: %v", err)
	}
	s.find(a.again(), record.StateExpired, tombstone)

	nothing := s.claimed(leased(tiny), retained(brief))
	req := nothing.commit(nil)
	req.Retention, req.Tombstone = brief, kept
	s.stored(req)
	s.expires(nothing)

	s.expires(s.resolved(brief, brief, kept))

	ending := s.claimed(leased(tiny), retained(brief))
	req = ending.commit([]byte("answer"))
	req.Retention, req.Tombstone = brief, brief
	s.stored(req)
	other := ending.other()
	s.until("a tombstone ends", func() bool { return s.ask(other, tombstone).State == record.StateGranted })
}
