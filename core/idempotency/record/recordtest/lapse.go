package recordtest

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/interlock-go/interlock/core/driver"
	"github.com/interlock-go/interlock/core/idempotency/record"
)

func (s *suite) takenOver() {
	a := s.lapsed()
	b := s.grant(a.again(), 2)
	s.powerless(a)
	s.late(a, record.StateInFlight, "")
	if rep := s.ask(a); rep.State != record.StateInFlight {
		s.Errorf("the token that lost its claim finds: %s", name(rep.State))
	}
	s.stored(b.commit([]byte("second")))
	s.powerless(a)
	s.late(a, record.StateCompleted, "second")
	s.replayed(a, "second")

	c := s.lapsed()
	d := s.grant(c.again(), 2, leased(tiny))
	s.lapse(d)
	s.late(c, record.StateInFlight, "") // nothing is lost yet, but it is another's
	e := s.grant(c.again(), 3)
	s.powerless(d)
	s.stored(e.commit(nil))
	s.late(c, record.StateUnavailable, "")
	s.late(d, record.StateUnavailable, "")
}

func (s *suite) takenOverByOne() {
	a := s.lapsed()
	counts := s.rush(func(int) attempt { return a.again() })
	if counts[record.StateGranted] != 1 || counts[record.StateInFlight] != many-1 {
		s.Errorf("of %d claims of a lapsed one %d are granted, %d in flight",
			many, counts[record.StateGranted], counts[record.StateInFlight])
	}
}

func (s *suite) lapsedIsOwn() {
	a := s.lapsed()
	s.stored(a.commit([]byte("late, and first")))
	s.replayed(a, "late, and first")
	a = s.unknown()
	s.stored(a.commit([]byte("it was carried out")))
	s.replayed(a, "it was carried out")
	a = s.lapsed()
	if err := s.extend(a, long, kept); err != nil {
		s.Errorf("Extend: %v", err)
	}
	s.find(a.again(), record.StateInFlight)
	a = s.lapsed()
	s.mark(a, long, kept, nil)
	s.find(a.again(), record.StateInFlight)
	a = s.lapsed()
	s.abandon(a, nil)
	s.grant(a.again(), 1)
}

func (s *suite) markedIsUnknown() {
	a := s.unknown()
	for _, opts := range [][]option{nil, {strict}, {waits, tombstone}} {
		s.find(a.again(), record.StateUnknown, opts...)
	}
	if err := s.extend(a, long, kept); err != nil { // it is still the token's
		s.Errorf("Extend: %v", err)
	}
	s.find(a.again(), record.StateInFlight)
}

func (s *suite) strictIsUnknown() {
	a := s.lapsed(strict)
	s.find(a.again(), record.StateUnknown)
	s.stored(a.commit([]byte("answer")))
	s.replayed(a, "answer")
	b := s.lapsed()
	s.find(b.again(), record.StateUnknown, strict)
	c := s.grant(b.again(), 2, leased(tiny)) // the strict claim has left no mark
	s.lapse(c)
	s.grant(b.again(), 3)
}

func (s *suite) extendLengthens() {
	a, b := s.lapsed(), s.claimed()
	for _, lease := range []time.Duration{long, short} {
		if err := s.extend(a, lease, kept); err != nil {
			s.Errorf("Extend: %v", err)
		}
	}
	if err := s.extend(b, short, kept); err != nil {
		s.Errorf("Extend: %v", err)
	}
	time.Sleep(2 * short) // past the end that a shortened lease would have
	for _, x := range []attempt{a, b} {
		if rep := s.find(x.again(), record.StateInFlight); rep.Left <= short {
			s.Errorf("%v remain of a lease of %v", rep.Left, long)
		}
	}
	s.grant(a, 1)
}

func (s *suite) markRenews() {
	a, b := s.lapsed(), s.claimed()
	for _, lease := range []time.Duration{long, short} {
		s.mark(a, lease, kept, nil)
	}
	s.mark(b, short, kept, nil)
	time.Sleep(2 * short)
	for _, x := range []attempt{a, b} {
		if rep := s.find(x.again(), record.StateInFlight); rep.Left <= short {
			s.Errorf("%v remain of a lease of %v", rep.Left, long)
		}
		s.stored(x.commit([]byte("answer")))
		s.mark(x, long, kept, nil) // it is done, which holds more
		s.replayed(x, "answer")
	}
}

func (s *suite) markOwn() {
	s.mark(first(), long, kept, driver.ErrNotOwner)
	a := s.claimed(leased(tiny))
	s.mark(a.again(), long, kept, driver.ErrNotOwner)
	s.lapse(a)
	b := s.grant(a.again(), 2, leased(tiny)) // so it was not marked
	s.mark(a, long, kept, driver.ErrNotOwner)
	s.lapse(b)
	s.grant(a.again(), 3)
}

// extensions makes a batch: some of its leases belong to a token, and some do not.
func (s *suite) extensions() (batch []record.Extension, own []bool) {
	add := func(a attempt, is bool) {
		batch = append(batch, record.Extension{ID: a.id, Token: a.token, Lease: long, Retention: kept})
		own = append(own, is)
	}
	done := s.claimed()
	s.stored(done.commit([]byte("answer")))
	add(done, true)
	add(done.again(), false)
	for range many {
		a := s.claimed()
		add(a.again(), false)
		add(a, true)
		add(first(), false)
	}
	return batch, own
}

func (s *suite) extendReportsOnce() {
	batch, own := s.extensions()
	ctx, cancel := s.bounded()
	defer cancel()
	calls, errs := s.extendAll(ctx, batch)
	for i := range batch {
		if calls[i] != 1 {
			s.Errorf("lease %d of %d was reported %d times", i, len(batch), calls[i])
		}
		if own[i] != (errs[i] == nil) || !own[i] && !errors.Is(errs[i], driver.ErrNotOwner) {
			s.Errorf("lease %d, the token's %v: %v", i, own[i], errs[i])
		}
	}
	s.store.Extend(ctx, nil, func(int, error) { s.Error("an empty batch has an outcome") })
}

// extendAll extends a batch, and counts the reports before Extend returned.
func (s *suite) extendAll(ctx context.Context, batch []record.Extension) (calls []int, errs []error) {
	var mu sync.Mutex
	calls, errs = make([]int, len(batch)), make([]error, len(batch))
	s.store.Extend(ctx, batch, func(i int, err error) {
		mu.Lock()
		defer mu.Unlock()
		calls[i]++
		errs[i] = err
	})
	mu.Lock()
	defer mu.Unlock()
	return append([]int(nil), calls...), append([]error(nil), errs...)
}

func (s *suite) extendEnded() {
	batch, own := s.extensions()
	ctx, cancel := s.bounded()
	cancel()
	calls, errs := s.extendAll(ctx, batch)
	for i := range batch {
		if calls[i] != 1 {
			s.Errorf("lease %d of %d was reported %d times", i, len(batch), calls[i])
		}
		if errs[i] == nil && !own[i] {
			s.Errorf("lease %d is not the token's, and was extended", i)
		}
	}
}
