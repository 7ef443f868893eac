package recordtest

import (
	"time"

	"github.com/interlock-go/interlock/core/idempotency/record"
)

// quietTime is how long a wait must have heard nothing to count as begun, and loudTime
// for how long that is waited for: a store may wake at any time.
const (
	quietTime = 150 * time.Millisecond
	loudTime  = 2 * time.Second
)

// listed has another request find a claim in flight and ask for its end. It reports
// whether the store will announce that, and when the request was made.
func (s *suite) listed(a attempt) (announced bool, asked time.Time) {
	s.Helper()
	asked = time.Now()
	if announced = s.find(a.again(), record.StateInFlight, waits).Listed; !announced {
		s.Log("the store does not announce the end of a claim")
	}
	return announced, asked
}

// await waits for the end of a claim.
func (s *suite) await(a attempt, since time.Time) (woken chan struct{}, stop func()) {
	woken = make(chan struct{}, 1000)
	return woken, s.store.Await(a.id, since, func() {
		select {
		case woken <- struct{}{}:
		default:
		}
	})
}

// quiet waits until a wait has begun, and discards earlier wake-ups.
func quiet(woken <-chan struct{}) {
	for end := time.After(loudTime); ; {
		select {
		case <-woken:
		case <-time.After(quietTime):
			return
		case <-end:
			return
		}
	}
}

// hears checks that a wait is woken.
func (s *suite) hears(woken <-chan struct{}, what string) {
	s.Helper()
	select {
	case <-woken:
	case <-time.After(patience):
		s.Fatalf("not woken: %s", what)
	}
}

func (s *suite) awaitHears() {
	for what, end := range map[string]func(a attempt){
		"a commit":                     func(a attempt) { s.stored(a.commit([]byte("answer"))) },
		"a commit without an envelope": func(a attempt) { s.stored(a.commit(nil)) },
		"an abandon":                   func(a attempt) { s.abandon(a, nil) },
		"a commit of a marked claim": func(a attempt) {
			s.mark(a, long, kept, nil)
			s.stored(a.commit([]byte("answer")))
		},
	} {
		a := s.claimed()
		announced, asked := s.listed(a)
		one, stopOne := s.await(a, asked)
		two, stopTwo := s.await(a, asked)
		quiet(one)
		quiet(two)
		end(a)
		if announced {
			s.hears(one, what)
			s.hears(two, what)
		}
		if rep := s.ask(a.again()); rep.State == record.StateInFlight {
			s.Errorf("after %s: %s", what, name(rep.State))
		}
		stopOne()
		stopTwo()
	}
}

func (s *suite) awaitLate() {
	for what, end := range map[string]func(a attempt){
		"a commit":   func(a attempt) { s.stored(a.commit([]byte("answer"))) },
		"an abandon": func(a attempt) { s.abandon(a, nil) },
	} {
		a := s.claimed()
		announced, asked := s.listed(a)
		end(a)
		woken, stop := s.await(a, asked)
		if announced {
			s.hears(woken, what+" between the last look and the wait")
		}
		stop()
	}
}

func (s *suite) awaitEnds() {
	a := s.claimed()
	announced, asked := s.listed(a)
	ended, stop := s.await(a, asked)
	woken, stopOther := s.await(a, asked)
	defer stopOther()
	quiet(ended)
	quiet(woken)
	stop()
	quiet(ended) // a call that was on its way may come
	s.stored(a.commit([]byte("answer")))
	if announced {
		s.hears(woken, "a commit")
		select {
		case <-ended:
			s.Error("a wait that has ended was woken")
		case <-time.After(quietTime):
		}
	}
}
