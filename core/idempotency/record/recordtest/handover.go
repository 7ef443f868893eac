package recordtest

import (
	"errors"
	"time"

	"github.com/interlock-go/interlock/core/driver"
	"github.com/interlock-go/interlock/core/idempotency/record"
)

// handOver hands a claim over for some time; want is nil or the error to match.
func (s *suite) handOver(a attempt, keep time.Duration, want error) {
	s.Helper()
	err := s.store.Mark(s.Context(), record.MarkRequest{
		ID: a.id, Token: a.token, Lease: keep, Retention: kept, HandOver: true, Deadline: time.Now().Add(patience),
	})
	if !errors.Is(err, want) {
		s.Fatalf("Mark with HandOver: %v; want %v", err, want)
	}
}

// handedOver is the claim of a new attempt that has handed it over.
func (s *suite) handedOver(opts ...option) attempt {
	s.Helper()
	a := s.claimed(opts...)
	s.handOver(a, tiny, nil)
	return a
}

// with is an option: the claim takes what an attempt has handed over.
func (a attempt) with() option {
	return func(req *record.ClaimRequest) { req.Ticket = a.token }
}

// look returns what a look at the record finds.
func (s *suite) look(a attempt, want record.State, opts ...option) record.ClaimReply {
	s.Helper()
	return s.find(attempt{id: a.id}, want, append(opts, func(req *record.ClaimRequest) { req.Look = true })...)
}

// interim stores an interim response, which must end with a state.
func (s *suite) interim(a attempt, response string, want record.State) {
	s.Helper()
	req := a.commit([]byte(response))
	req.Interim = true
	if rep := s.commit(req); rep.State != want || rep.Response != "" && want != record.StateCompleted {
		s.Fatalf("Commit of an interim response: %s with %q; want %s", name(rep.State), rep.Response, name(want))
	}
}

func (s *suite) takesHandedOver() {
	a := s.handedOver()
	job := a.again()
	s.grant(job, 1, a.with())
	s.grant(job, 1, a.with()) // an earlier try was granted
	s.powerless(a)
	if rep := s.find(a.again(), record.StateInFlight, a.with()); rep.Left <= 0 || rep.Left > long {
		s.Errorf("%v remain of a lease of %v", rep.Left, long)
	}
	s.find(a.again(), record.StateInFlight)
	s.mark(job, long, kept, nil)
	s.stored(job.commit([]byte("final")))
	s.find(a.again(), record.StateCompleted, a.with())
	s.replayed(a, "final")

	b := s.handedOver()
	nothing := s.grant(b.again(), 1, b.with())
	s.stored(nothing.commit(nil))
	s.find(b.again(), record.StateUnavailable, b.with())
}

func (s *suite) takesOnlyHandedOver() {
	s.find(first(), record.StateExpired, first().with())
	a := s.claimed()
	// The attempt hands over when its transaction is committed, or does not.
	if rep := s.find(a.again(), record.StateInFlight, a.with()); rep.Left <= 0 || rep.Left > long {
		s.Errorf("%v remain of a lease of %v", rep.Left, long)
	}
	died := s.lapsed()
	s.find(died.again(), record.StateExpired, died.with())
	s.handOver(a.again(), long, driver.ErrNotOwner)
	s.handOver(a, long, nil)
	s.handOver(a, long, nil)
	s.find(a.again(), record.StateExpired, a.again().with())
	s.find(a.other(), record.StateMismatch, a.with())
	s.find(a.again(), record.StateInFlight)
	s.grant(a.again(), 1, a.with())
	done := s.claimed()
	s.stored(done.commit([]byte("final")))
	s.handOver(done, long, nil) // as Mark, which finds more than a mark
	s.find(done.again(), record.StateCompleted, done.with())
}

func (s *suite) takesOneOfMany() {
	a := s.handedOver()
	counts := s.rush(func(int) attempt { return a.again() }, a.with())
	if counts[record.StateGranted] != 1 || counts[record.StateInFlight] != many-1 {
		s.Errorf("of %d attempts with a ticket: %d granted, %d in flight", many, counts[record.StateGranted], counts[record.StateInFlight])
	}
	b := s.handedOver(leased(tiny))
	s.lapse(b)
	counts = s.rushEach(func(i int) (attempt, []option) {
		if i%2 == 0 {
			return b.again(), []option{b.with()}
		}
		return b.again(), nil
	})
	if counts[record.StateGranted] != 1 {
		s.Errorf("of attempts with a ticket, and duplicates, after its time: %d granted", counts[record.StateGranted])
	}
}

// A ticket counts until another attempt has the claim.
func (s *suite) ticketRunsOut() {
	late := s.handedOver(leased(tiny))
	s.lapse(late)
	s.grant(late.again(), 1, late.with())

	marked := s.claimed(leased(tiny))
	s.mark(marked, tiny, kept, nil)
	s.handOver(marked, tiny, nil)
	s.lapse(marked)
	s.find(marked.again(), record.StateUnknown)
	s.grant(marked.again(), 1, marked.with()) // the attempt that marked has handed over since

	a := s.handedOver(leased(tiny))
	s.interim(a, "accepted", record.StateGranted)
	s.lapse(a)
	b := s.grant(a.again(), 2)
	if rep := s.find(a.again(), record.StateInFlight); rep.Response != "" {
		s.Errorf("after a take-over duplicates get the interim response %q of the attempt before", rep.Response)
	}
	s.find(a.again(), record.StateExpired, a.with())
	s.interim(a, "accepted", record.StateInFlight)
	s.abandon(b, nil)
	s.find(a.again(), record.StateExpired, a.with())
	s.interim(a, "accepted", record.StateUnknown)
	s.grant(a.again(), 2)
}

func (s *suite) takenAgain() {
	a := s.handedOver()
	dead := s.grant(a.again(), 1, a.with(), leased(tiny))
	s.lapse(a)
	s.find(a.again(), record.StateUnknown, a.with(), strict)
	b := s.grant(a.again(), 2, a.with())
	s.powerless(dead)
	s.late(dead, record.StateInFlight, "")
	s.abandon(b, nil)
	c := s.grant(a.again(), 2, a.with()) // not 1: the dead attempt has begun
	s.abandon(c, nil)
	s.stored(dead.commit([]byte("late, and the only one")))
	s.find(a.again(), record.StateCompleted, a.with())

	m := s.handedOver()
	marked := s.grant(m.again(), 1, m.with(), leased(tiny))
	s.mark(marked, tiny, kept, nil)
	s.lapse(m)
	s.find(m.again(), record.StateUnknown, m.with())
	s.find(m.again(), record.StateUnknown)
	s.stored(marked.commit([]byte("answer")))
}

func (s *suite) givenBack() {
	a := s.handedOver(strict)
	s.interim(a, "accepted", record.StateGranted)
	job := s.grant(a.again(), 1, a.with())
	s.abandon(job, nil)
	s.powerless(job)
	if rep := s.find(a.again(), record.StateInFlight); rep.Left <= 0 || rep.Response != "accepted" {
		s.Errorf("after a job gave up a duplicate has %v to wait, and the response %q; want what remains of the lease, and the interim response",
			rep.Left, rep.Response)
	}
	s.powerless(a)
	next := s.grant(a.again(), 1, a.with(), leased(tiny)) // although it is marked
	s.abandon(next, nil)
}

// While a ticket is good no duplicate is carried out, also after a job with a shorter lease has
// given up or died.
func (s *suite) closedForTheTicket() {
	gave := s.handedOver() // the ticket is good for the lease that it had, which is longer
	job := s.grant(gave.again(), 1, gave.with(), leased(tiny))
	s.abandon(job, nil)
	if rep := s.find(gave.again(), record.StateInFlight); rep.Left <= tiny || rep.Left > long {
		s.Errorf("after a job with a lease of %v gave up a duplicate has %v to wait; want what remains of the ticket's %v", tiny, rep.Left, long)
	}
	if rep := s.look(gave, record.StateInFlight); rep.Left <= tiny || rep.Left > long {
		s.Errorf("after a job gave up a look finds that %v remain; want what remains of the ticket's %v", rep.Left, long)
	}
	s.grant(gave.again(), 1, gave.with())

	died := s.handedOver()
	s.interim(died, "accepted", record.StateGranted)
	s.grant(died.again(), 1, died.with(), leased(tiny))
	s.lapse(died)
	for _, rep := range []record.ClaimReply{s.find(died.again(), record.StateInFlight), s.look(died, record.StateInFlight)} {
		if rep.Left <= tiny || rep.Left > long || rep.Response != "accepted" {
			s.Errorf("after a job died a duplicate has %v to wait, and the response %q; want what remains of the ticket's %v, and the interim response",
				rep.Left, rep.Response, long)
		}
	}
	s.grant(died.again(), 2, died.with())

	over := s.handedOver(leased(tiny)) // and after its time the first counts
	job = s.grant(over.again(), 1, over.with(), leased(long))
	s.find(over.again(), record.StateInFlight)
	s.until("the ticket's time is over, and a duplicate is carried out after the job gave up", func() bool {
		s.abandon(job, nil)
		if rep := s.ask(over.again()); rep.State == record.StateGranted {
			return true
		}
		job = s.grant(over.again(), 1, over.with(), leased(long))
		return false
	})
	s.find(over.again(), record.StateExpired, over.with())
}

// The attempt that has handed over gives up: its handler has failed.
func (s *suite) voidedByItsGiver() {
	a := s.claimed()
	s.handOver(a, long, nil)
	s.abandon(a, nil)
	s.find(a.again(), record.StateExpired, a.with())
	s.grant(a.again(), 1)

	b := s.lapsed()
	second := s.grant(b.again(), 2)
	s.handOver(second, long, nil)
	s.abandon(second, nil)
	s.find(b.again(), record.StateExpired, second.with())
	s.grant(b.again(), 2)

	c := s.handedOver()
	job := s.grant(c.again(), 1, c.with())
	s.abandon(c, driver.ErrNotOwner) // it is too late
	s.stored(job.commit([]byte("final")))

	d := s.claimed()
	s.handOver(d, long, nil)
	s.interim(d, "accepted", record.StateGranted)
	s.abandon(d, driver.ErrNotOwner) // that is its end
	s.grant(d.again(), 1, d.with())
}

// A job hands over and fails: its claim goes back to the ticket that it came with, whatever interim
// response an attempt before it has left.
func (s *suite) voidedByAJob() {
	for _, response := range []string{"", "accepted"} {
		a := s.handedOver()
		if response != "" {
			s.interim(a, response, record.StateGranted)
		}
		job := s.grant(a.again(), 1, a.with(), leased(tiny))
		s.handOver(job, long, nil)
		s.handOver(job, long, nil)
		s.abandon(job, nil)
		s.find(a.again(), record.StateExpired, job.with())
		if rep := s.find(a.again(), record.StateInFlight); rep.Left <= tiny || rep.Left > long || rep.Response != response {
			s.Errorf("after a job handed over and failed a duplicate has %v to wait, and the response %q; want what remains of the first ticket's %v, and %q",
				rep.Left, rep.Response, long, response)
		}
		next := s.grant(a.again(), 1, a.with())
		s.handOver(next, long, nil)
		last := s.grant(a.again(), 1, next.with(), leased(tiny))
		s.abandon(last, nil)
		s.find(a.again(), record.StateExpired, a.with())
		s.interim(next, "nearly", record.StateGranted)
		s.abandon(next, driver.ErrNotOwner)
		last = s.grant(a.again(), 1, next.with())
		s.stored(last.commit([]byte("final")))
		s.replayed(a, "final")
	}
}

func (s *suite) interimResponses() {
	s.interim(first(), "accepted", record.StateUnknown)
	a := s.claimed()
	s.interim(a, "accepted", record.StateUnknown) // it is not handed over
	s.handOver(a, long, nil)
	if rep := s.find(a.again(), record.StateInFlight); rep.Response != "" {
		s.Errorf("a duplicate of a claim in flight gets %q", rep.Response)
	}
	for range 2 {
		s.interim(a, "accepted", record.StateGranted)
		for _, opts := range [][]option{nil, {waits}, {strict, tombstone}} {
			rep := s.find(a.again(), record.StateInFlight, opts...)
			if rep.Left <= 0 || rep.Left > long {
				s.Errorf("%v remain of %v", rep.Left, long)
			}
			same(s, rep.Response, "accepted")
		}
	}
	if rep := s.find(a.other(), record.StateMismatch); rep.Response != "" {
		s.Errorf("another request gets the interim response %q", rep.Response)
	}
	job := s.grant(a.again(), 1, a.with())
	same(s, s.find(a.again(), record.StateInFlight).Response, "accepted")
	s.stored(job.commit([]byte("final")))
	s.replayed(a, "final")
	s.interim(a, "accepted", record.StateGranted) // it changes nothing
	s.replayed(a, "final")

	b := s.handedOver()
	early := s.grant(b.again(), 1, b.with()) // before the response of the attempt that handed over
	s.interim(b, "accepted", record.StateGranted)
	same(s, s.find(b.again(), record.StateInFlight).Response, "accepted")
	s.handOver(early, long, nil) // a chain
	same(s, s.find(b.again(), record.StateInFlight).Response, "accepted")
	s.find(b.again(), record.StateExpired, b.with())
	last := s.grant(b.again(), 1, early.with())
	s.stored(last.commit(nil))
	s.find(b.again(), record.StateUnavailable)
}

// An interim response wakes the duplicates that wait.
func (s *suite) awaitInterim() {
	a := s.claimed()
	s.handOver(a, long, nil)
	asked := time.Now()
	if !s.find(a.again(), record.StateInFlight, waits).Listed {
		return
	}
	woken := make(chan struct{}, 100)
	stop := s.store.Await(a.id, asked, func() { woken <- struct{}{} })
	defer stop()
	for len(woken) > 0 {
		<-woken
	}
	s.interim(a, "accepted", record.StateGranted)
	select {
	case <-woken:
	case <-time.After(patience):
		s.Error("an interim response has woken no duplicate")
	}
}

func (s *suite) looks() {
	s.look(first(), record.StateExpired)
	a := s.claimed()
	if rep := s.look(a, record.StateInFlight); rep.Left <= 0 || rep.Left > long || rep.Response != "" {
		s.Errorf("a look at a claim: %v remain of %v, with the response %q", rep.Left, long, rep.Response)
	}
	s.handOver(a, long, nil)
	s.interim(a, "accepted", record.StateGranted)
	same(s, s.look(a, record.StateInFlight).Response, "accepted")
	s.grant(a, 1) // nothing has changed
	s.stored(a.commit([]byte("final")))
	same(s, s.look(a, record.StateCompleted).Response, "final")
	b := s.claimed()
	s.stored(b.commit(nil))
	s.look(b, record.StateUnavailable)
	s.look(s.unknown(), record.StateUnknown)
	c := s.lapsed()
	s.look(c, record.StateGranted)
	s.look(c, record.StateUnknown, strict)
	s.grant(c.again(), 2)
}
