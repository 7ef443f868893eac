//go:build long && unix

package postgres_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/driver"
	"github.com/interlock-go/interlock/core/pgstore"
	"github.com/interlock-go/interlock/trust/internal/pgtest"
)

// answered repeats a request, a few times, that a busy machine has left without an answer.
func answered(ask func() error) (err error) {
	for range 5 {
		if err = ask(); !errors.Is(err, core.ErrUnavailable) || errors.Is(err, core.ErrLost) {
			break
		}
	}
	return err
}

// trying asks again until there is no error.
func trying(t *testing.T, ask func() error) {
	t.Helper()
	var err error
	eventually(t, "without an error", func() bool {
		if err = ask(); err != nil {
			t.Log(err)
		}
		return err == nil
	})
}

// newPrimary returns a server with a standby, a route to the server, and the tables of a
// store in it.
func newPrimary(t *testing.T, settings ...string) (primary, standby *pgtest.Server, route *pgtest.Route) {
	t.Helper()
	primary = pgtest.Start(t, settings...)
	standby = primary.Standby(t)
	migrate(t, newStore(t, primary.Open(t)))
	return primary, standby, pgtest.NewRoute(primary)
}

// synchronous has a commit wait for the standby.
const synchronous = "synchronous_standby_names=*"

// over returns a store over a route, as a process has one.
func over(t *testing.T, route *pgtest.Route) *pgstore.Store {
	t.Helper()
	return newStore(t, route.Open(t), pgstore.Timeout(time.Second))
}

// Lockers of two processes work over a failover. Before they reach the promoted server it
// knows every grant.
func TestAFailoverWithSynchronousReplicationLosesNoLock(t *testing.T) {
	t.Parallel()
	const (
		keys  = 4
		lease = 20 * time.Second // on a busy machine a promotion takes several seconds
	)
	primary, standby, route := newPrimary(t, synchronous)

	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	lost := core.OnLost(func(loss core.Loss) { t.Errorf("lost: %v", loss) })
	var lockers [2]*core.Locker
	for i := range lockers {
		lockers[i] = newLocker(t, over(t, route), core.Watchdog(lease), lost)
	}
	var j judge
	var all sync.WaitGroup
	for i, l := range lockers {
		for g := range 8 {
			all.Go(func() {
				for n := i + g; ctx.Err() == nil; n++ {
					held, err := l.Lock(ctx, fmt.Sprint("key", n%keys))
					if err != nil {
						if ctx.Err() == nil && !errors.Is(err, core.ErrUnavailable) {
							t.Errorf("Lock: %v", err)
						}
						continue
					}
					j.section(held.Key(), held.Token(), func() bool { return held.Err() == nil })
					if err := held.Release(ctx); errors.Is(err, core.ErrLost) {
						t.Errorf("Release: %v", err)
					}
				}
			})
		}
	}
	// Each process takes locks that it keeps, up to the crash.
	var crashed atomic.Bool
	var locked atomic.Int64
	var kept [2][]*core.Lease
	var keeping sync.WaitGroup
	for i, l := range lockers {
		keeping.Go(func() {
			for n := 0; n < 500 && !crashed.Load(); n++ {
				held, err := l.Lock(ctx, fmt.Sprint("kept", i, "-", n))
				if err == nil {
					kept[i] = append(kept[i], held)
					locked.Add(1)
				} else if !errors.Is(err, core.ErrUnavailable) {
					t.Errorf("Lock: %v", err)
				}
			}
		})
	}
	j.more(t, "the locks are used", 200)
	eventually(t, "20 locks are held over the failover", func() bool { return locked.Load() >= 20 })
	primary.Abort(t)
	begin := time.Now()
	crashed.Store(true)
	standby.Promote(t)

	route.To(standby)
	keeping.Wait() // callers that were asking when the server crashed have an answer, too
	promoted := standby.Open(t)
	holds := slices.Concat(kept[0], kept[1])
	t.Logf("%d locks are held over the failover", len(holds))
	for _, held := range holds {
		if got := lockRow(t, promoted, held.Key()); !got.held || got.token != held.Token() {
			t.Errorf("%s: the promoted server has %+v; want it held with token %d", held.Key(), got, held.Token())
		}
	}
	// A lock is free when its lease ends if the crash left its request without an answer.
	for before := j.sections.Load(); j.sections.Load() < before+200 && time.Since(begin) < 3*lease; {
		time.Sleep(10 * time.Millisecond)
	}
	j.more(t, "the locks are used on the promoted server", 1)
	t.Logf("200 sections on the promoted server %v after the crash", time.Since(begin).Round(time.Millisecond))
	for i, l := range lockers {
		for _, held := range kept[1-i] {
			if err := answered(func() error { return held.Check(ctx) }); err != nil {
				t.Errorf("%s after the failover: %v", held.Key(), err)
			}
			err := answered(func() error { _, err := l.TryLock(ctx, held.Key()); return err })
			if !errors.Is(err, core.ErrHeld) {
				t.Errorf("%s for another process: %v; want ErrHeld", held.Key(), err)
			}
		}
	}
	renewed := time.Now().Add(lease) // a deadline after this one is of the promoted server
	for _, held := range holds {
		eventually(t, "the lease is renewed", func() bool { return held.Deadline().After(renewed) })
		if err := held.Release(ctx); err != nil && (!errors.Is(err, core.ErrUnavailable) || errors.Is(err, core.ErrLost)) {
			t.Errorf("Release: %v", err)
		}
	}
	cancel()
	all.Wait()
	j.verdict(t)
}

// Commits that the standby did not get are lost. The holder learns it, and the next token is
// greater as long as the clock of the promoted server is not slow.
func TestALockThatAFailoverLostIsReported(t *testing.T) {
	t.Parallel()
	const lease = 20 * time.Second // as above
	primary, standby, route := newPrimary(t)
	told := make(chan core.Loss, 10)
	first := newLocker(t, over(t, route), core.Watchdog(lease), core.OnLost(func(loss core.Loss) { told <- loss }))
	second := newLocker(t, over(t, route), core.Watchdog(lease))
	take := func(l *core.Locker, key string) *core.Lease {
		var held *core.Lease
		err := answered(func() (err error) { held, err = l.Lock(t.Context(), key); return err })
		if err != nil {
			t.Fatalf("%s: %v", key, err)
		}
		return held
	}
	// A lock that is not released in time is released in the background.
	unanswered := func(err error) bool { return errors.Is(err, core.ErrUnavailable) && !errors.Is(err, core.ErrLost) }
	early, used := take(first, "early"), take(first, "used")
	if err := used.Release(t.Context()); err != nil && !unanswered(err) {
		t.Fatal(err)
	}
	replica := standby.Open(t)
	eventually(t, "the standby has the first grants", func() bool {
		return lockRow(t, replica, "early").token == early.Token() && lockRow(t, replica, "used").token == used.Token() && !lockRow(t, replica, "used").held
	})
	primary.Detach(t, standby)
	late := []*core.Lease{take(first, "new"), take(first, "used")}
	primary.Abort(t)
	standby.Promote(t)
	for _, held := range late {
		if got := lockRow(t, replica, held.Key()); got.held || got.token >= held.Token() {
			t.Fatalf("%s: the standby has %+v; the grant is not lost", held.Key(), got)
		}
	}

	route.To(standby)
	switched := time.Now()
	taken := []*core.Lease{early} // which the standby had
	for _, held := range late {
		next := take(second, held.Key())
		if next.Token() <= held.Token() {
			t.Errorf("%s: token %d after %d that was lost", held.Key(), next.Token(), held.Token())
		}
		t.Logf("%s: taken again after %v, while the first holder's error is %v", held.Key(), time.Since(switched).Round(time.Millisecond), held.Err())
		taken = append(taken, next)
	}
	for _, held := range late {
		select {
		case <-held.Context().Done():
		case <-time.After(time.Until(held.Deadline()) + measured(t).Patience()):
			t.Fatalf("%s: the holder is not told", held.Key())
		}
		if err := context.Cause(held.Context()); !errors.Is(err, core.ErrLost) {
			t.Errorf("%s: the context ended with %v", held.Key(), err)
		}
		if err := held.Release(t.Context()); !errors.Is(err, core.ErrLost) {
			t.Errorf("%s: Release: %v", held.Key(), err)
		}
	}
	t.Logf("the holder was told after %v", time.Since(switched).Round(time.Millisecond))
	heard := make(map[string]bool)
	for range late {
		heard[string(receive(t, "OnLost is called", told).Key)] = true
	}
	if !heard["new"] || !heard["used"] || len(told) > 0 {
		t.Errorf("OnLost was told about %v, and %d more", heard, len(told))
	}
	for _, held := range taken {
		if err := answered(func() error { return held.Check(t.Context()) }); err != nil {
			t.Errorf("%s: %v", held.Key(), err)
		}
		if err := held.Release(t.Context()); err != nil && !unanswered(err) {
			t.Errorf("%s: %v", held.Key(), err)
		}
	}
}

// A commit that waits for the standby is cancelled at the time limit of its try. PostgreSQL
// then keeps it on the primary alone, which shows it. The standby may be promoted while the
// primary still runs, so a grant or a renewal that the standby lacks must not be answered.
func TestWithoutTheSynchronousStandbyNothingIsGranted(t *testing.T) {
	t.Parallel()
	primary, standby, _ := newPrimary(t, synchronous)
	plain := primary.Open(t)
	for name, db := range drivers(t, primary) {
		t.Run(name, func(t *testing.T) {
			s := newStore(t, db, pgstore.Timeout(300*time.Millisecond))
			take := func() (driver.Reply, error) {
				return s.Acquire(t.Context(), driver.AcquireRequest{Key: name, Owner: "o", TTL: time.Minute})
			}
			renew := func(ttl time.Duration) (err error) {
				s.Renew(t.Context(), []driver.Renewal{{Key: name, Owner: "o", TTL: ttl}}, func(_ int, _ bool, outcome error) { err = outcome })
				return err
			}
			primary.Detach(t, standby)
			for range 2 {
				// On a busy machine a request may not reach the primary in its time.
				trying(t, func() error {
					// The second may find the row locked by the first, which still waits for the
					// standby: then it was not carried out.
					rep, err := take()
					unsent := errors.Is(err, driver.ErrUnavailable) && !rep.Ambiguous && !errors.Is(err, driver.ErrNotReady)
					unknown := errors.Is(err, driver.ErrUnavailable) && rep.Ambiguous
					if rep.Granted || !unknown && !unsent && !errors.Is(err, driver.ErrNotReady) {
						t.Errorf("without the standby: %+v, %v; want it unknown, or not carried out", rep, err)
					}
					switch {
					case unsent:
						return fmt.Errorf("the request was not sent: %w", err)
					case !lockRow(t, plain, name).held:
						return errors.New("the primary has no lock, so there was nothing to be granted")
					}
					return nil
				})
			}
			primary.Attach(t, standby)
			var rep driver.Reply
			// A standby that has just come back, or a row that an earlier statement has
			// locked, can take longer than a request.
			trying(t, func() (err error) { rep, err = take(); return err })
			if !rep.Granted {
				t.Fatalf("with the standby: %+v", rep)
			}
			// A commit waits until the standby has it on disk, and not until it shows it.
			there := standby.Open(t)
			eventually(t, "the standby shows the lock", func() bool { return lockRow(t, there, name).token == rep.Token })

			primary.Detach(t, standby)
			for _, ttl := range []time.Duration{time.Hour, time.Minute} { // the second finds the lease of the first
				if err := renew(ttl); !errors.Is(err, driver.ErrUnavailable) && !errors.Is(err, driver.ErrNotReady) {
					t.Errorf("a renewal by %v without the standby: %v", ttl, err)
				}
			}
			primary.Attach(t, standby)
			trying(t, func() error { return renew(time.Minute) })
		})
	}
}
