package recordtest

import (
	"errors"
	"strings"
	"time"

	"github.com/interlock-go/interlock/core/driver"
	"github.com/interlock-go/interlock/core/idempotency/record"
)

// steps is the request that stores the steps of an attempt. The last word of the text names the last
// step.
func (a attempt) steps(log, open string) record.StepRequest {
	return record.StepRequest{
		ID: a.id, Token: a.token, Lease: tiny, Retention: kept, Log: []byte(log), Last: log[strings.LastIndex(log, " ")+1:], Open: open,
		Deadline: time.Now().Add(patience),
	}
}

// step stores steps; want is nil or the error to match.
func (s *suite) step(req record.StepRequest, want error) {
	s.Helper()
	if err := s.store.Step(s.Context(), req); !errors.Is(err, want) {
		s.Fatalf("Step with %.60q: %v; want %v", req.Log, err, want)
	}
}

// stepped is the claim of a new attempt after the end of its lease, with steps.
func (s *suite) stepped(log, open string, opts ...option) attempt {
	s.Helper()
	a := s.claimed(append([]option{leased(tiny)}, opts...)...)
	s.step(a.steps(log, open), nil)
	s.lapse(a)
	return a
}

// resume makes a claim that must be granted, with this generation and these steps.
func (s *suite) resume(a attempt, generation int64, log string, opts ...option) attempt {
	s.Helper()
	rep := s.ask(a, opts...)
	if rep.State != record.StateGranted || rep.Generation != generation || rep.Steps != log {
		s.Fatalf("Claim: %s with generation %d and the steps %.60q; want it granted with %d and %.60q",
			name(rep.State), rep.Generation, rep.Steps, generation, log)
	}
	a.generation = generation
	return a
}

func (s *suite) stepsComeAlong() {
	large := strings.Repeat("\x00 all bytes \xff\r\n'\"\\", 4000) + " last"
	for _, log := range []string{"charge", large} {
		a := s.stepped(log, "")
		b := s.resume(a.again(), 2, log, leased(tiny))
		s.resume(b, 2, log) // an earlier try was granted
		s.lapse(b)
		c := s.resume(b.again(), 3, log, leased(tiny))
		s.step(c.steps(log+" book", ""), nil)
		s.lapse(c)
		d := s.resume(c.again(), 4, log+" book")
		s.stored(d.commit([]byte("answer")))
		s.replayed(d, "answer")
		s.forget(d)
		s.resume(d.again(), 1, "")
	}
}

func (s *suite) longestSteps() {
	a := s.claimed(leased(tiny))
	s.step(a.steps("charge", ""), nil)
	s.step(a.steps("charge book mail", ""), nil)
	s.step(a.steps("charge book mail", ""), nil) // the network repeats it
	s.step(a.steps("charge book", "book"), nil)  // it is late
	s.step(a.steps("charge mail", ""), driver.ErrNotOwner)
	s.step(a.steps("charge book mail x", ""), nil)
	s.lapse(a)
	s.resume(a.again(), 2, "charge book mail x")
}

func (s *suite) stepOwn() {
	s.step(first().steps("charge", ""), driver.ErrNotOwner)
	a := s.stepped("charge", "")
	b := s.grant(a.again(), 2)
	s.step(a.steps("charge book", ""), driver.ErrNotOwner)
	s.step(a.again().steps("charge book", ""), driver.ErrNotOwner)
	s.stored(b.commit([]byte("answer")))
	s.step(b.steps("charge book", ""), driver.ErrNotOwner)
	s.replayed(b, "answer")
}

func (s *suite) stepRenews() {
	a := s.claimed(leased(tiny))
	req := a.steps("charge", "")
	req.Lease = long
	s.step(req, nil)
	if rep := s.find(a.again(), record.StateInFlight); rep.Left <= long/2 || rep.Left > long {
		s.Errorf("%v remain of a lease of %v that a step has renewed", rep.Left, long)
	}
	s.step(a.steps("charge book", ""), nil) // shortens nothing
	if rep := s.find(a.again(), record.StateInFlight); rep.Left <= long/2 {
		s.Errorf("%v remain of a lease of %v after a step with a shorter one", rep.Left, long)
	}
}

func (s *suite) openIsUnknown() {
	a := s.stepped("charge", "book")
	s.find(a.again(), record.StateUnknown)
	s.step(a.steps("charge book", ""), nil)
	s.lapse(a)
	b := s.resume(a.again(), 2, "charge book", leased(tiny))

	s.step(b.steps("charge book mail", "mail"), nil)
	s.step(b.steps("charge book", ""), nil) // late: mail is open
	s.lapse(b)
	s.find(b.again(), record.StateUnknown)

	m := s.claimed(leased(tiny))
	s.mark(m, tiny, kept, nil)
	s.step(m.steps("charge", "book"), nil)
	s.step(m.steps("charge book", ""), nil)
	s.lapse(m)
	s.find(m.again(), record.StateUnknown) // of the mark
}

func (s *suite) openOrTakeOver() {
	s.races(nil, func(a attempt) (one, two func()) {
		opened := make(chan error, 1)
		req := a.steps("charge", "book")
		req.Lease = long
		one = func() { opened <- s.store.Step(s.Context(), req) }
		two = func() {
			rep, err := s.ask(a.again()), <-opened
			switch {
			case err == nil && rep.State == record.StateInFlight:
			case errors.Is(err, driver.ErrNotOwner) && rep.State == record.StateGranted && rep.Steps == "":
			default:
				s.Errorf("a step: %v, and a take-over at the same time: %s with %q", err, name(rep.State), rep.Steps)
			}
		}
		return one, two
	})
}

func (s *suite) abandonKeepsSteps() {
	a := s.claimed()
	s.step(a.steps("charge", "book"), nil)
	s.abandon(a, nil) // the step that is open did not begin
	s.powerless(a)
	s.step(a.steps("charge book", ""), driver.ErrNotOwner)
	s.find(a.other(), record.StateMismatch)
	b := s.resume(a.again(), 1, "charge")
	s.abandon(b, nil)
	c := s.resume(a.again(), 1, "charge", leased(tiny))
	s.step(c.steps("charge book", ""), nil)
	s.lapse(c)
	d := s.resume(c.again(), 2, "charge book")
	s.step(d.steps("charge book mail", "mail"), nil)
	s.abandon(d, nil)
	s.resume(a.again(), 2, "charge book mail")
}

func (s *suite) stepsWithATicket() {
	a := s.claimed()
	s.step(a.steps("charge", ""), nil)
	s.handOver(a, tiny, nil)
	b := s.resume(a.again(), 1, "charge", a.with(), leased(tiny))
	s.step(b.steps("charge book", ""), nil)
	s.lapse(b)
	c := s.resume(a.again(), 2, "charge book", a.with(), leased(tiny))
	s.step(c.steps("charge book", "mail"), nil) // the same text: it opens nothing
	s.step(c.steps("charge book mail", "mail"), nil)
	s.abandon(c, nil)
	d := s.resume(a.again(), 2, "charge book mail", a.with(), leased(tiny))
	s.step(d.steps("charge book mail again", "again"), nil)
	s.lapse(d)
	s.find(a.again(), record.StateUnknown, a.with())
	s.find(a.again(), record.StateUnknown)

	e := s.claimed(leased(tiny))
	s.step(e.steps("charge", ""), nil)
	s.handOver(e, tiny, nil)
	s.lapse(e)
	s.resume(e.again(), 2, "charge") // a duplicate, after the time of the ticket
}

func (s *suite) resolveSteps() {
	open := s.stepped("charge", "book")
	for _, wrong := range []string{"charge", "mail"} {
		req := open.again().resolution(nil)
		req.Step, req.Log = wrong, []byte(" "+wrong)
		if err := s.store.Resolve(s.Context(), req); !errors.Is(err, record.ErrNotUnknown) {
			s.Errorf("Resolve of the step %s, while book is open: %v; want %v", wrong, err, record.ErrNotUnknown)
		}
	}
	s.find(open.again(), record.StateUnknown)
	req := open.again().resolution(nil)
	req.Step, req.Log = "book", []byte(" book")
	if err := s.store.Resolve(s.Context(), req); err != nil {
		s.Fatalf("Resolve of the open step: %v", err)
	}
	s.powerless(open)
	s.step(open.steps("charge book", ""), driver.ErrNotOwner)
	s.find(open.other(), record.StateMismatch)
	a := s.resume(open.again(), 2, "charge book", leased(tiny))

	s.step(a.steps("charge book mail", "mail"), nil)
	s.lapse(a)
	if err := s.resolve(a.again(), nil); err != nil {
		s.Fatalf("Resolve without an envelope: %v", err)
	}
	b := s.resume(a.again(), 3, "charge book mail", leased(tiny))
	s.mark(b, tiny, kept, nil)
	s.lapse(b)
	if err := s.resolve(b.again(), nil); err != nil {
		s.Fatalf("Resolve of a marked record with steps: %v", err)
	}
	c := s.resume(b.again(), 4, "charge book mail", leased(tiny))
	s.step(c.steps("charge book mail end", "end"), nil)
	s.lapse(c)
	if err := s.resolve(c.again(), []byte("found out")); err != nil {
		s.Fatalf("Resolve with an envelope: %v", err)
	}
	s.replayed(c, "found out")
}

func (s *suite) stepsExpire() {
	a := s.prompt(brief, nil, func(a attempt) error {
		req := a.steps("charge", "book")
		req.Retention = brief
		return s.store.Step(s.Context(), req)
	})
	s.until("the record has expired", func() bool {
		rep := s.ask(a.again())
		if rep.Steps != "" {
			s.Errorf("the claim of an expired record gets the steps %q", rep.Steps)
		}
		return rep.State == record.StateGranted
	})
}

func (s *suite) listedSteps() {
	lister, ok := s.store.(record.Lister)
	if !ok {
		return
	}
	see := func(a attempt) record.View {
		v, err := lister.LookRecord(s.Context(), a.id)
		if err != nil {
			s.Fatalf("LookRecord: %v", err)
		}
		return v
	}
	if v := see(s.stepped("charge book", "")); v.State != record.StateGranted || v.Step != "book" || v.Open != "" || string(v.Log) != "charge book" || v.Left > 0 {
		s.Errorf("a lapsed record with steps: %+v", v)
	}
	if v := see(s.stepped("charge", "book")); v.State != record.StateUnknown || v.Marked || v.Step != "charge" || v.Open != "book" {
		s.Errorf("a record with an open step: %+v", v)
	}
	a := s.claimed()
	s.step(a.steps("charge", "book"), nil)
	s.abandon(a, nil)
	if v := see(a); v.State != record.StateGranted || v.Step != "charge" || v.Open != "" || v.Left > 0 {
		s.Errorf("a record with steps after its claim was given up: %+v", v)
	}
	done := s.grant(a.again(), 1)
	s.stored(done.commit([]byte("answer")))
	if v := see(a); v.State != record.StateCompleted || v.Step != "" || len(v.Log) != 0 {
		s.Errorf("a completed record still has steps: %+v", v)
	}
}
