package recordtest

import (
	"context"
	"errors"
	"strings"
	"sync"
	"time"

	"github.com/interlock-go/interlock/core/driver"
	"github.com/interlock-go/interlock/core/idempotency/record"
)

func (s *suite) grantsFree() {
	a := s.claimed()
	s.claimed() // of another record
	if rep := s.find(a.again(), record.StateInFlight); rep.Generation != 0 || rep.Response != "" {
		s.Errorf("a claim in flight has generation %d and a response of %d bytes for others", rep.Generation, len(rep.Response))
	}
}

func (s *suite) repeatedClaim() {
	a := s.claimed(leased(short))
	s.grant(a, 1) // it does not have the long lease of this claim
	s.lapse(a)
	s.grant(a, 1)
	s.grant(a.again(), 2)

	shortened, marked := s.claimed(), s.claimed(strict)
	s.grant(shortened, 1, leased(short))
	s.grant(marked, 1, strict)
	time.Sleep(2 * short) // past the end that a shortened lease would have
	s.find(shortened.again(), record.StateInFlight)

	b := first()
	var all sync.WaitGroup
	for range many {
		all.Go(func() {
			if rep := s.ask(b); rep.State != record.StateGranted || rep.Generation != 1 {
				s.Errorf("claims of one token at the same time: %s with generation %d", name(rep.State), rep.Generation)
			}
		})
	}
	all.Wait()
	s.abandon(b, nil) // one ends what all took
	s.grant(b.again(), 1)
}

func (s *suite) wholeTokens() {
	a := first()
	a.token += "a"
	s.grant(a, 1)
	for what, token := range map[string]string{
		"a prefix": a.token[:len(a.token)-1], "an extension": a.token + "2", "the case": strings.ToUpper(a.token),
	} {
		b := a
		b.token = token
		if rep := s.ask(b); rep.State != record.StateInFlight {
			s.Errorf("%s of the token: %s", what, name(rep.State))
		}
		s.powerless(b)
		s.late(b, record.StateInFlight, "")
	}
	s.stored(a.commit([]byte("whole")))
}

func (s *suite) recordsApart() {
	a := first()
	a.id = "aB-" + a.id[3:] // of 43 characters, as every id
	ids := []string{
		a.id, "AB-" + a.id[3:], "ab-" + a.id[3:], "aB_" + a.id[3:], "a--" + a.id[3:], a.id[:42] + "-", a.id[:42] + "_",
	}
	seen := map[string]bool{}
	for _, id := range ids {
		if seen[id] {
			continue // the last character is chance
		}
		seen[id] = true
		b := a.again()
		b.id = id
		s.grant(b, 1)
	}
}

func (s *suite) oneOfMany() {
	a := first()
	b := a.other()
	counts := s.rush(func(i int) attempt {
		if i%2 == 0 {
			return a.again()
		}
		return b.again()
	})
	half := many / 2
	if counts[record.StateGranted] != 1 || counts[record.StateInFlight] != half-1 || counts[record.StateMismatch] != half {
		s.Errorf("of two requests %d times each at once: %d granted, %d in flight, %d mismatches",
			half, counts[record.StateGranted], counts[record.StateInFlight], counts[record.StateMismatch])
	}
}

// rush makes many claims at the same time, and counts the states that they return.
func (s *suite) rush(each func(i int) attempt, opts ...option) map[record.State]int {
	return s.rushEach(func(i int) (attempt, []option) { return each(i), opts })
}

// rushEach is rush with options for each claim.
func (s *suite) rushEach(each func(i int) (attempt, []option)) map[record.State]int {
	var mu sync.Mutex
	counts := map[record.State]int{}
	var all sync.WaitGroup
	start := make(chan struct{})
	for i := range many {
		a, opts := each(i)
		all.Go(func() {
			<-start
			rep := s.ask(a, opts...)
			mu.Lock()
			defer mu.Unlock()
			counts[rep.State]++
		})
	}
	close(start)
	all.Wait()
	return counts
}

func (s *suite) inFlight() {
	a := s.claimed()
	for _, opts := range [][]option{nil, {waits}, {strict}, {tombstone}} {
		rep := s.find(a.again(), record.StateInFlight, opts...)
		if rep.Left <= 0 || rep.Left > long {
			s.Errorf("%v remain of a lease of %v", rep.Left, long)
		}
	}
	b := s.claimed(leased(short))
	s.until("the lease has ended", func() bool {
		rep := s.ask(b.again(), strict)
		if rep.State == record.StateInFlight && (rep.Left <= 0 || rep.Left > short) {
			s.Errorf("%v remain of a lease of %v", rep.Left, short)
		}
		return rep.State == record.StateUnknown
	})
}

func (s *suite) mismatch() {
	completed, nothing := s.claimed(), s.claimed()
	s.stored(completed.commit([]byte("answer")))
	s.stored(nothing.commit(nil))
	for _, c := range []struct {
		what  string
		a     attempt
		state record.State
	}{
		{"in flight", s.claimed(), record.StateInFlight},
		{"completed", completed, record.StateCompleted},
		{"unavailable", nothing, record.StateUnavailable},
		{"unknown", s.unknown(), record.StateUnknown},
		{"lapsed", s.lapsed(), record.StateGranted}, // it is free, for the same request
	} {
		for _, opts := range [][]option{nil, {strict}, {tombstone, waits}} {
			rep := s.ask(c.a.other(), opts...)
			if rep.State != record.StateMismatch || rep.Response != "" {
				s.Errorf("%s: another request finds: %s, with a response of %d bytes", c.what, name(rep.State), len(rep.Response))
			}
		}
		if rep := s.ask(c.a.again()); rep.State != c.state {
			s.Errorf("%s: after another request: %s; want %s", c.what, name(rep.State), name(c.state))
		}
	}
}

func (s *suite) endedContext() {
	ctx, cancel := context.WithCancel(s.Context())
	cancel()
	a := first()
	s.leaves(ctx, a)
	s.settles(a)
}

// leaves makes a claim, ends its context, and checks that its outcome is reported once,
// by Claim or by Late.
func (s *suite) leaves(ctx context.Context, a attempt) {
	s.Helper()
	late := make(chan record.ClaimReply, 2)
	rep, err := s.store.Claim(ctx, s.request(a, func(req *record.ClaimRequest) {
		req.Late = func(rep record.ClaimReply, _ error) { late <- rep }
	}))
	switch {
	case errors.Is(err, driver.ErrPending):
		select {
		case <-late:
		case <-time.After(patience):
			s.Fatal("Claim returned ErrPending, and Late was not called")
		}
	case err != nil:
		s.Errorf("Claim: %v; want its outcome, or %v", err, driver.ErrPending)
	case rep.State != record.StateGranted:
		s.Errorf("Claim of a free record: %s", name(rep.State))
	}
	select {
	case <-late:
		s.Error("Late was called although Claim had returned the outcome, or was called twice")
	case <-time.After(10 * time.Millisecond):
	}
}

// settles checks that an abandon makes the record free, however a claim ended.
func (s *suite) settles(a attempt) {
	s.Helper()
	next := a.again()
	s.until("the record is free after its token has given up a claim that it left", func() bool {
		err := s.store.Abandon(s.Context(), record.AbandonRequest{ID: a.id, Token: a.token, Deadline: time.Now().Add(patience)})
		if err != nil && !errors.Is(err, driver.ErrNotOwner) {
			s.Fatalf("Abandon: %v", err)
		}
		return s.ask(next).State == record.StateGranted
	})
}

func (s *suite) callerLeaves() {
	for i := range many {
		ctx, cancel := context.WithCancel(s.Context())
		a := first()
		left := make(chan struct{})
		go func() {
			defer close(left)
			time.Sleep(time.Duration(i) * 20 * time.Microsecond)
			cancel()
		}()
		s.leaves(ctx, a)
		<-left
		s.settles(a)
	}
}
