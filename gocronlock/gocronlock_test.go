package gocronlock_test

import (
	"context"
	"errors"
	"log/slog"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-co-op/gocron/v2"
	"github.com/jonboulle/clockwork"
	"go.uber.org/goleak"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/memstore"
	"github.com/interlock-go/interlock/gocronlock"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// behind is a clock that is behind.
type behind struct {
	clockwork.Clock
	by time.Duration
}

func (c behind) Now() time.Time                  { return c.Clock.Now().Add(-c.by) }
func (c behind) Until(t time.Time) time.Duration { return t.Sub(c.Now()) }
func (c behind) Since(t time.Time) time.Duration { return c.Now().Sub(t) }

// newLocker makes the locker of a process.
func newLocker(t *testing.T, store core.Store) *core.Locker {
	t.Helper()
	l, err := core.New(store)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// schedule starts a process with a job at each full minute. It returns what ends the process.
func schedule(t *testing.T, late time.Duration, job func(), opt gocron.SchedulerOption) (end func()) {
	t.Helper()
	s, err := gocron.NewScheduler(gocron.WithClock(behind{clockwork.NewRealClock(), late}), opt)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.NewJob(gocron.CronJob("* * * * *", false), gocron.NewTask(job), gocron.WithName("report")); err != nil {
		t.Fatal(err)
	}
	s.Start()
	return func() {
		if err := s.Shutdown(); err != nil {
			t.Error(err)
		}
	}
}

// A process with a clock that is two seconds behind comes to a tick when the job of the other
// process is over.
func TestAQuickJobRunsOnceATickThoughAClockIsBehind(t *testing.T) {
	for name, c := range map[string]struct {
		hold time.Duration
		want int32
	}{
		"a hold above the difference of the clocks": {hold: 30 * time.Second, want: 60},
		"released at once":                          {hold: 10 * time.Millisecond, want: 120}, // why there is a hold
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store := memstore.New()
				var runs, inside atomic.Int32
				job := func() {
					if inside.Add(1) != 1 {
						t.Error("the job runs in two processes at once")
					}
					time.Sleep(100 * time.Millisecond)
					inside.Add(-1)
					runs.Add(1)
				}
				time.Sleep(30 * time.Second)
				var ends []func()
				for _, late := range []time.Duration{0, 2 * time.Second} {
					l := newLocker(t, store)
					locks, err := gocronlock.NewLocker(l, c.hold)
					if err != nil {
						t.Fatal(err)
					}
					end := schedule(t, late, job, gocron.WithDistributedLocker(locks))
					ends = append(ends, end, func() { closed(t, l) })
				}
				time.Sleep(time.Hour)
				for _, end := range ends {
					end()
				}
				if n := runs.Load(); n != c.want {
					t.Errorf("%d runs in an hour of minutes; want %d", n, c.want)
				}
			})
		})
	}
}

func closed(t *testing.T, l *core.Locker) {
	t.Helper()
	if err := l.Close(context.Background()); err != nil {
		t.Error(err)
	}
}

// A job that takes longer than the time between two ticks leaves out the ticks in between.
func TestALongJobIsAloneForAsLongAsItRuns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memstore.New()
		var runs, inside atomic.Int32
		job := func() {
			if inside.Add(1) != 1 {
				t.Error("the job runs twice at once")
			}
			time.Sleep(90 * time.Second)
			inside.Add(-1)
			runs.Add(1)
		}
		time.Sleep(30 * time.Second)
		var ends []func()
		for range 2 {
			l := newLocker(t, store)
			locks, err := gocronlock.NewLocker(l, 10*time.Second)
			if err != nil {
				t.Fatal(err)
			}
			ends = append(ends, schedule(t, 0, job, gocron.WithDistributedLocker(locks)), func() { closed(t, l) })
		}
		time.Sleep(12*time.Minute + 20*time.Second)
		for _, end := range ends {
			end()
		}
		if n := runs.Load(); n != 6 {
			t.Errorf("%d runs in 12 minutes; want 6", n)
		}
	})
}

func TestADeadProcessKeepsAJobForItsHold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memstore.New()
		dying, l := newLocker(t, store), newLocker(t, store)
		locks := make([]gocron.Locker, 2)
		for i, l := range []*core.Locker{dying, l} {
			var err error
			if locks[i], err = gocronlock.NewLocker(l, 10*time.Second); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := locks[0].Lock(t.Context(), "a job, with / in it"); err != nil {
			t.Fatal(err)
		}
		now, cancel := context.WithCancel(t.Context())
		cancel()
		_ = dying.Close(now) // it renews nothing
		if _, err := locks[1].Lock(t.Context(), "a job, with / in it"); !errors.Is(err, core.ErrHeld) {
			t.Errorf("at the death: %v; want %v", err, core.ErrHeld)
		}
		time.Sleep(10 * time.Second)
		lock, err := locks[1].Lock(t.Context(), "a job, with / in it")
		if err != nil {
			t.Fatal(err)
		}
		if err := lock.Unlock(t.Context()); err != nil {
			t.Error(err)
		}
		closed(t, l)
	})
}

func TestALockerThatCannotWorkIsRefused(t *testing.T) {
	l := newLocker(t, memstore.New())
	defer closed(t, l)
	for name, make := range map[string]func() (gocron.Locker, error){
		"no locker": func() (gocron.Locker, error) { return gocronlock.NewLocker(nil, time.Second) },
		"no hold":   func() (gocron.Locker, error) { return gocronlock.NewLocker(l, 0) },
		"too long":  func() (gocron.Locker, error) { return gocronlock.NewLocker(l, 32*24*time.Hour) },
	} {
		if locks, err := make(); locks != nil || !errors.Is(err, core.ErrConfig) {
			t.Errorf("%s: %v; want %v", name, err, core.ErrConfig)
		}
	}
	locks, err := gocronlock.NewLocker(l, time.Second)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := locks.Lock(t.Context(), ""); !errors.Is(err, core.ErrKey) {
		t.Errorf("a job without a name: %v; want %v", err, core.ErrKey)
	}
}

func TestTheLeaderRunsTheJobsAndTheNextOneFollows(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memstore.New()
		var runs [2]atomic.Int32
		var ends, resign [2]func()
		var lockers [2]*core.Locker
		time.Sleep(30 * time.Second)
		for i := range runs {
			ctx, cancel := context.WithCancel(t.Context())
			lockers[i], resign[i] = newLocker(t, store), cancel
			elector := gocronlock.NewElector(ctx, lockers[i], "leader/cron")
			synctest.Wait() // the first one leads
			ends[i] = schedule(t, time.Duration(i)*time.Second, func() { runs[i].Add(1) }, gocron.WithDistributedElector(elector))
		}
		want := func(first, second int32) {
			t.Helper()
			if a, b := runs[0].Load(), runs[1].Load(); a != first || b != second {
				t.Errorf("%d and %d runs; want %d and %d", a, b, first, second)
			}
		}
		time.Sleep(10 * time.Minute)
		want(10, 0)
		ends[0]()
		resign[0]()
		time.Sleep(10 * time.Minute)
		want(10, 10)
		ends[1]()
		resign[1]()
		for _, l := range lockers {
			closed(t, l)
		}
	})
}

func TestAProcessThatHasLostItsLockDoesNotLead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memstore.New()
		l := newLocker(t, store)
		ctx, cancel := context.WithCancel(t.Context())
		e := gocronlock.NewElector(ctx, l, "leader/cron")
		synctest.Wait()
		if err := e.IsLeader(ctx); err != nil {
			t.Errorf("alone: %v; want a leader", err)
		}
		free := store.Take("leader/cron", time.Hour) // a lock that another process has taken
		time.Sleep(30 * time.Second)                 // the next renewal finds that
		if err := e.IsLeader(ctx); !errors.Is(err, gocronlock.ErrNotLeader) {
			t.Errorf("after the loss: %v; want %v", err, gocronlock.ErrNotLeader)
		}
		free()
		time.Sleep(time.Minute)
		if err := e.IsLeader(ctx); err != nil {
			t.Errorf("when the lock is free again: %v; want a leader", err)
		}
		cancel()
		synctest.Wait()
		if err := e.IsLeader(ctx); !errors.Is(err, gocronlock.ErrNotLeader) {
			t.Errorf("after the end: %v; want %v", err, gocronlock.ErrNotLeader)
		}
		closed(t, l)
	})
}

func TestAnElectionThatCannotWorkSaysSo(t *testing.T) {
	old := slog.Default()
	slog.SetDefault(slog.New(slog.DiscardHandler))
	defer slog.SetDefault(old)
	synctest.Test(t, func(t *testing.T) {
		l := newLocker(t, memstore.New())
		e := gocronlock.NewElector(t.Context(), l, "")
		synctest.Wait()
		if err := e.IsLeader(t.Context()); !errors.Is(err, gocronlock.ErrNotLeader) || !errors.Is(err, core.ErrKey) {
			t.Errorf("an empty key: %v; want %v by %v", err, gocronlock.ErrNotLeader, core.ErrKey)
		}
		closed(t, l)
	})
}
