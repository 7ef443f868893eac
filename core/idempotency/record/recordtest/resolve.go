package recordtest

import (
	"errors"
	"time"

	"github.com/interlock-go/interlock/core/idempotency/record"
)

func (a attempt) resolution(response []byte) record.ResolveRequest {
	return record.ResolveRequest{
		ID: a.id, Token: a.token, Response: response, Retention: kept, Deadline: time.Now().Add(patience),
	}
}

// resolve settles a record with a known outcome.
func (s *suite) resolve(a attempt, response []byte) error {
	return s.store.Resolve(s.Context(), a.resolution(response))
}

func (s *suite) resolvesUnknown() {
	marked, completed, nothing, abandoned := s.claimed(), s.claimed(), s.claimed(), s.claimed()
	s.mark(marked, long, kept, nil)
	s.stored(completed.commit([]byte("answer")))
	s.stored(nothing.commit(nil))
	s.abandon(abandoned, nil)
	for _, c := range []struct {
		what   string
		a      attempt
		strict bool // a strict claim that lapsed is unknown
		state  record.State
	}{
		{"no record", first(), true, record.StateGranted},
		{"in flight", s.claimed(), true, record.StateInFlight},
		{"in flight, strict", s.claimed(strict), true, record.StateInFlight},
		{"in flight, marked", marked, true, record.StateInFlight},
		{"completed", completed, true, record.StateCompleted},
		{"unavailable", nothing, true, record.StateUnavailable},
		{"abandoned", abandoned, true, record.StateGranted},
		{"lapsed", s.lapsed(), false, record.StateGranted},
	} {
		for _, response := range [][]byte{[]byte("found out"), nil} {
			for _, strict := range []bool{false, c.strict} {
				req := c.a.again().resolution(response)
				req.Strict = strict
				if err := s.store.Resolve(s.Context(), req); !errors.Is(err, record.ErrNotUnknown) {
					s.Errorf("%s: Resolve, strict %v, %d bytes: %v; want %v", c.what, strict, len(response), err, record.ErrNotUnknown)
				}
			}
		}
		if rep := s.ask(c.a.again()); rep.State != c.state || rep.State == record.StateCompleted && rep.Response != "answer" {
			s.Errorf("%s: after Resolve: %s, %.60q; want %s", c.what, name(rep.State), rep.Response, name(c.state))
		}
	}
	s.stored(marked.commit([]byte("answer"))) // its token has lost nothing
}

func (s *suite) resolveStored() {
	for what, c := range map[string]struct {
		a      attempt
		strict bool
	}{
		"marked": {s.unknown(), false}, "strict": {s.lapsed(strict), false}, "not marked, asked by strict ones": {s.lapsed(), true},
		"marked, asked by strict ones": {s.unknown(), true},
	} {
		req := c.a.again().resolution([]byte("found out"))
		req.Strict = c.strict
		for i := range 2 { // the second is as a try that the network repeats
			if err := s.store.Resolve(s.Context(), req); err != nil && (i == 0 || !errors.Is(err, record.ErrNotUnknown)) {
				s.Errorf("%s: Resolve: %v", what, err)
			}
		}
		s.replayed(c.a, "found out")
		s.find(c.a.other(), record.StateMismatch)
		s.powerless(c.a)
		s.late(c.a, record.StateCompleted, "found out")
		for _, response := range [][]byte{[]byte("otherwise"), nil} {
			if err := s.resolve(c.a.again(), response); !errors.Is(err, record.ErrNotUnknown) {
				s.Errorf("%s: Resolve once more: %v; want %v", what, err, record.ErrNotUnknown)
			}
		}
		s.replayed(c.a, "found out")
	}
}

func (s *suite) resolveFreed() {
	a := s.unknown()
	if err := s.resolve(a.again(), nil); err != nil {
		s.Fatalf("Resolve: %v", err)
	}
	s.powerless(a)
	b := s.grant(a.again(), 1)
	s.powerless(a)
	s.late(a, record.StateInFlight, "")
	s.stored(b.commit([]byte("second")))
	s.late(a, record.StateCompleted, "second")
	c := s.lapsed()
	req := c.again().resolution(nil)
	req.Strict = true
	if err := s.store.Resolve(s.Context(), req); err != nil {
		s.Errorf("Resolve of a claim that lapsed, of strict ones: %v", err)
	}
	s.grant(c.other(), 1)
}

func (s *suite) forgets() {
	completed, nothing := s.claimed(), s.claimed()
	s.stored(completed.commit([]byte("answer")))
	s.stored(nothing.commit(nil))
	for _, a := range []attempt{first(), s.claimed(), completed, nothing, s.lapsed(), s.unknown(), s.expired()} {
		s.forget(a)
		s.grant(a.other(), 1, tombstone)
	}
}
