package core_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/memstore"
	"github.com/interlock-go/interlock/core/observe"
)

// diary is an Observer that records each call with the name of the lock request.
type diary struct{ ledger }

func (d *diary) Start(ctx context.Context, op observe.Operation) (context.Context, observe.Observation) {
	if op.Unlocked {
		d.add("%s unlocked", op.Rule)
	}
	return ctx, observe.Observation{
		Acquired: func(a observe.Acquired) {
			d.add("%s acquired %v, attempts %d, contended %v, reentered %v", op.Rule, a.Err == nil, a.Attempts, a.Contended, a.Reentered)
		},
		Released: func(r observe.Released) {
			var lost observe.LossReason
			if r.Lost != nil {
				lost = r.Lost.Reason
			}
			d.add("%s released %v, lost %q", op.Rule, r.Err == nil, lost)
		},
		Renewed:  func(r observe.Renewed) { d.add("%s renewed %s in %v: %v", op.Rule, r.Key, r.Took, r.Err == nil) },
		Lost:     func(x core.Loss) { d.add("%s lost %s", op.Rule, x.Reason) },
		Bypassed: func(error) { d.add("%s bypassed", op.Rule) },
		Rejected: func(error) { d.add("%s rejected", op.Rule) },
	}
}

// read fails the test unless the diary has exactly these lines.
func (d *diary) read(t *testing.T, want ...string) {
	t.Helper()
	d.mu.Lock()
	defer d.mu.Unlock()
	if !slices.Equal(d.lines, want) {
		t.Errorf("observed\n%q; want\n%q", d.lines, want)
	}
}

// A counter of the locks that are held takes one off for each release. A lock that was
// refused without a wait, since another process holds it, was contended too.
func TestNoReleaseIsObservedOfLocksThatWereNotGranted(t *testing.T) {
	for name, keys := range map[string][]string{
		"none was taken":   {"b", "c"},
		"some were taken":  {"a", "b"},
		"one was asked of": {"b"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s, d := newStore(), &diary{}
				l := newLocker(t, s, core.WithObserver(d))
				s.Take("b", time.Minute)
				_, err := l.LockAll(t.Context(), keys, core.Wait(0), core.Name("r"))
				wantErr(t, err, core.ErrHeld)
				want := fmt.Sprintf("r acquired false, attempts %d, contended true, reentered false", 1+slices.Index(keys, "b"))
				d.read(t, want)
			})
		})
	}
}

func TestAReenteredHoldIsObservedWithoutTheAttemptsOfTheFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, d := newStore(), &diary{}
		l := newLocker(t, s, core.WithObserver(d))
		outer := held(t, l, t.Context(), "k", core.Name("outer"))
		inner := held(t, l, outer.Context(), "k", core.Name("inner"))
		release(t, inner)
		release(t, outer)
		d.read(t,
			"outer acquired true, attempts 1, contended false, reentered false",
			"inner acquired true, attempts 0, contended false, reentered true",
			`inner released true, lost ""`,
			`outer released true, lost ""`,
		)
	})
}

// A handler that is quicker than the first renewal finds a loss only in
// the release: a counter of losses must get it there, and once.
func TestALossFoundByTheReleaseIsObservedWithTheRelease(t *testing.T) {
	for name, c := range map[string]struct {
		opts   []core.Option
		happen func(*notedStore)
		want   observe.LossReason
	}{
		"deleted":    {nil, func(s *notedStore) { s.Expire("a") }, observe.LossDeleted},
		"taken over": {nil, func(s *notedStore) { s.Take("a", time.Minute) }, observe.LossTakenOver},
		"a reply that came past the end of the lease": {
			[]core.Option{core.TTL(time.Second)},
			func(s *notedStore) {
				s.Intercept(always(memstore.Fault{After: 2 * time.Second}))
			},
			"", // released in time; how long the answer takes is no loss
		},
		"unreachable": {
			nil,
			func(s *notedStore) {
				s.Intercept(always(memstore.Unreachable))
			},
			"", // nobody knows that
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s, d := newStore(), &diary{}
				l := newLocker(t, s, core.WithObserver(d))
				for i, keys := range [][]string{{"a"}, {"a", "b"}} {
					d.lines = nil
					lease, err := l.LockAll(t.Context(), keys, append(c.opts, core.Name("r"))...)
					if err != nil {
						t.Fatal(err)
					}
					c.happen(s)
					err = lease.Release(t.Context())
					if lost := errors.Is(err, core.ErrLost); lost != (c.want != "") {
						t.Errorf("Release: %v", err)
					}
					if got, want := d.lines[len(d.lines)-1], fmt.Sprintf("r released %v, lost %q", err == nil, c.want); got != want {
						t.Errorf("%d: observed %q; want %q", i, d.lines, want)
					}
					s.Intercept(nil)
					s.Expire("a")
					time.Sleep(time.Minute) // what could not be released is swept up
				}
			})
		})
	}
}

func TestALossThatWasObservedIsNotObservedAgainWithTheRelease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, d := newStore(), &diary{}
		l := newLocker(t, s, core.WithObserver(d), core.Name("r"))
		lease := held(t, l, t.Context(), "k", core.TTL(time.Second))
		<-lease.Context().Done()
		wantErr(t, lease.Release(t.Context()), core.ErrLost)
		synctest.Wait()
		held, _ := l.Lock(t.Context(), "m", core.MaxHold(time.Second))
		<-held.Context().Done()
		s.Expire("m")
		wantErr(t, held.Release(t.Context()), core.ErrLost)
		synctest.Wait()
		slices.Sort(d.lines) // a handler that wakes may release before the watchdog has told
		d.read(t,
			"r acquired true, attempts 1, contended false, reentered false",
			"r acquired true, attempts 1, contended false, reentered false",
			"r lost expired",
			"r lost max_hold",
			`r released false, lost ""`,
			`r released false, lost ""`,
		)
	})
}

func TestARenewalIsObservedWithItsKeyAndHowLongItTook(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, d := newStore(), &diary{}
		l := newLocker(t, s, core.WithObserver(d), core.Watchdog(30*time.Second), core.Name("r"))
		lease := held(t, l, t.Context(), "k")
		s.Intercept(func(memstore.Request) memstore.Fault {
			return memstore.Fault{Before: time.Second, Err: core.ErrUnavailable}
		})
		time.Sleep(11 * time.Second)
		synctest.Wait()
		s.Intercept(always(memstore.Fault{After: 2 * time.Second}))
		time.Sleep(3 * time.Second)
		synctest.Wait()
		s.Intercept(nil)
		release(t, lease)
		d.read(t,
			"r acquired true, attempts 1, contended false, reentered false",
			"r renewed k in 1s: false",
			"r renewed k in 2s: true",
			`r released true, lost ""`,
		)
	})
}

func TestAGuardSaysWhenItAsksForNoLock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, d := newStore(), &diary{}
		l := newLocker(t, s, core.WithObserver(d))
		g := core.Serialize(l, "account/{id}", core.FailOpen(), core.Name("r"))
		g.Do(t.Context(), request{"id": ""}, func(context.Context) bool { return true })
		s.Intercept(always(memstore.Unreachable))
		g.Do(t.Context(), one, func(context.Context) bool { return true })
		d.read(t,
			"r unlocked", "r rejected",
			"r acquired false, attempts 1, contended false, reentered false", "r unlocked", "r bypassed",
		)
	})
}
