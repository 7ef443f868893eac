package once_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"
	_ "time/tzdata" // a container may have no zones

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/idempotency"
	"github.com/interlock-go/interlock/core/idempotency/once"
)

func TestATickRunsOnceOverAllProcesses(t *testing.T) {
	inBubble(t, func(w *world) {
		runs := 0
		job := func(context.Context) error {
			runs++
			return nil
		}
		fleet := []*idempotency.Engine{w.engine(), w.engine(idempotency.Scope(scope)), w.engine()} // with a Scope too
		hours := func(n int) {
			t.Helper()
			for range 60 * n {
				for _, e := range fleet {
					if err := once.Per(w.Context(), e, "report", time.Hour, job); err != nil {
						t.Fatal(err)
					}
				}
				<-time.After(time.Minute)
			}
		}
		hours(3)
		if runs != 3 {
			t.Errorf("%d runs in 3 h, want 3", runs)
		}
		if err := once.Per(w.Context(), fleet[0], "cleanup", time.Hour, job); err != nil || runs != 4 {
			t.Errorf("another job: %v, %d runs", err, runs)
		}
		if err := once.Per(w.Context(), fleet[0], "report", 2*time.Hour, job); err != nil || runs != 5 {
			t.Errorf("another period: %v, %d runs", err, runs)
		}
	})
}

// The retention of the engine is a day.
func TestATickIsRememberedForAsLongAsItLasts(t *testing.T) {
	inBubble(t, func(w *world) {
		e := w.engine()
		week, runs := 7*24*time.Hour, 0
		<-time.After(time.Until(time.Now().Truncate(week).Add(week))) // Monday
		if day := time.Now().UTC().Weekday(); day != time.Monday {
			t.Errorf("a week begins on %v", day)
		}
		for range 14 {
			if err := once.Per(w.Context(), e, "report", week, func(context.Context) error {
				runs++
				return nil
			}); err != nil {
				t.Fatal(err)
			}
			<-time.After(24 * time.Hour)
		}
		if runs != 2 {
			t.Errorf("%d runs in two weeks, want 2", runs)
		}
	})
}

// A schedule that calls once in a period, at its beginning, has no second call for the run
// that the first one took for the run before it.
func TestATimerThatFiresEarlyLosesNoRun(t *testing.T) {
	for _, period := range []time.Duration{time.Second, time.Minute, 24 * time.Hour} {
		inBubble(t, func(w *world) {
			e, runs := w.engine(idempotency.Lease(10*time.Millisecond)), 0
			call := func(at time.Time) {
				w.Helper()
				<-time.After(time.Until(at))
				if err := once.Per(w.Context(), e, "report", period, func(context.Context) error {
					runs++
					return nil
				}); err != nil {
					w.Fatal(err)
				}
			}
			begin := time.Now().Truncate(period).Add(period)
			for i := range 5 {
				tick := begin.Add(time.Duration(i) * period)
				call(tick.Add(-20 * time.Millisecond))
				if runs != i+1 {
					w.Fatalf("%v, 20 ms early: %d runs after %d calls", period, runs, i+1)
				}
				call(tick) // of another process with a right clock
				call(tick.Add(9 * period / 10))
				if runs != i+1 {
					w.Fatalf("%v: %d runs in %d period(s)", period, runs, i+1)
				}
			}
		})
	}
}

// A job at a local time that is near to midnight in UTC, over a year with both changes of the
// clock. With periods in UTC, Berlin, London and New York lose a run in spring or in autumn.
func TestAJobAtALocalTimeRunsOnEachLocalDay(t *testing.T) {
	for zone, at := range map[string][2]int{
		"Europe/Berlin": {1, 30}, "Europe/London": {0, 30}, "America/New_York": {19, 30}, "Asia/Tokyo": {9, 0}, "UTC": {23, 59},
	} {
		location, err := time.LoadLocation(zone)
		if err != nil {
			t.Fatal(err)
		}
		inBubble(t, func(w *world) {
			e, runs := w.engine(), 0
			year, month, day := time.Now().In(location).Date()
			for n := 1; n <= 366; n++ {
				next := time.Date(year, month, day+n, at[0], at[1], 0, 0, location)
				<-time.After(time.Until(next))
				for range 2 { // of two processes
					if err := once.Per(w.Context(), e, "report", 24*time.Hour, func(context.Context) error {
						runs++
						return nil
					}, once.In(location)); err != nil {
						w.Fatal(err)
					}
				}
				if runs != n {
					w.Fatalf("%s: %d runs until %v, want %d", zone, runs, next, n)
				}
			}
		})
	}
}

func TestAPeriodInALocationIsWholeDays(t *testing.T) {
	inBubble(t, func(w *world) {
		err := once.Per(w.Context(), w.engine(), "report", time.Hour, func(context.Context) error { return nil }, once.In(time.Local))
		if !errors.Is(err, core.ErrConfig) {
			t.Errorf("%v; want ErrConfig", err)
		}
	})
}

func TestATickThatFailsIsTriedAgain(t *testing.T) {
	inBubble(t, func(w *world) {
		e, runs := w.engine(), 0
		broken := errors.New("broken")
		tick := func(err error) error {
			return once.Per(w.Context(), e, "report", time.Hour, func(context.Context) error {
				runs++
				return err
			})
		}
		if err := tick(broken); !errors.Is(err, broken) {
			t.Errorf("%v", err)
		}
		if err := tick(nil); err != nil || runs != 2 {
			t.Errorf("%v after %d runs", err, runs)
		}
		<-time.After(time.Hour)
		if err := tick(once.Final(broken)); !errors.Is(err, broken) {
			t.Errorf("%v", err)
		}
		if err := tick(nil); !once.Permanent(err) || runs != 3 {
			t.Errorf("a tick that failed for good: %v after %d runs", err, runs)
		}
		<-time.After(time.Hour)
		if err := tick(nil); err != nil || runs != 4 {
			t.Errorf("the next tick: %v after %d runs", err, runs)
		}
	})
}

func TestATickThatIsRunElsewhere(t *testing.T) {
	inBubble(t, func(w *world) {
		var wg sync.WaitGroup
		wg.Go(func() {
			err := once.Per(w.Context(), w.engine(), "report", time.Hour, func(context.Context) error {
				<-time.After(time.Minute)
				return nil
			})
			if err != nil {
				t.Error(err)
			}
		})
		synctest.Wait()
		never := func(context.Context) error {
			t.Error("it ran twice")
			return nil
		}
		if err := once.Per(w.Context(), w.engine(), "report", time.Hour, never); !errors.Is(err, idempotency.ErrInFlight) {
			t.Errorf("%v", err)
		}
		if err := once.Per(w.Context(), w.engine(idempotency.WaitReplay(time.Hour)), "report", time.Hour, never); err != nil {
			t.Errorf("the call that waited: %v", err)
		}
		wg.Wait()
	})
}

func TestAPeriodThatIsNone(t *testing.T) {
	inBubble(t, func(w *world) {
		for name, period := range map[string]time.Duration{"report": 0, "minus": -time.Hour, "long": 367 * 24 * time.Hour, "": time.Hour} {
			err := once.Per(w.Context(), w.engine(), name, period, func(context.Context) error { return nil })
			if !errors.Is(err, core.ErrConfig) {
				t.Errorf("%q, %v: %v", name, period, err)
			}
		}
	})
}
