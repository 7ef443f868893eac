package core_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/adapter"
	"github.com/interlock-go/interlock/core/memstore"
	"github.com/interlock-go/interlock/core/observe"
	"github.com/interlock-go/interlock/internal/logtest"
)

// bad is an observer with one function that panics.
type bad struct{ which string }

func (b bad) Start(ctx context.Context, _ observe.Operation) (context.Context, observe.Observation) {
	b.panics("Start")
	return ctx, observe.Observation{
		Acquired:   func(observe.Acquired) { b.panics("Acquired") },
		Released:   func(observe.Released) { b.panics("Released") },
		Renewed:    func(observe.Renewed) { b.panics("Renewed") },
		Lost:       func(core.Loss) { b.panics("Lost") },
		Disordered: func(string, string) { b.panics("Disordered") },
		Rejected:   func(error) { b.panics("Rejected") },
		Bypassed:   func(error) { b.panics("Bypassed") },
	}
}

func (b bad) panics(at string) {
	if b.which == at {
		panic("at " + at)
	}
}

// wantPanic calls f and wants its panic.
func wantPanic(t *testing.T, want any, f func()) {
	t.Helper()
	defer func() {
		t.Helper()
		if got := recover(); got != want {
			t.Errorf("panic is %v, want %v", got, want)
		}
	}()
	f()
}

func TestAPanicOfTheObserverWhereTheCallerWaitsKeepsNoLock(t *testing.T) {
	for _, c := range []struct {
		which string
		do    func(t *testing.T, l *core.Locker)
	}{
		{"Start", func(t *testing.T, l *core.Locker) { _, _ = l.Lock(t.Context(), "k") }},
		{"Acquired", func(t *testing.T, l *core.Locker) { _, _ = l.Lock(t.Context(), "k") }},
		{"Acquired", func(t *testing.T, l *core.Locker) { _, _ = l.LockAll(t.Context(), []string{"k", "m", "n"}) }},
		{"Acquired", func(t *testing.T, l *core.Locker) {
			core.Serialize(l, "k").Do(t.Context(), noRequest{}, func(context.Context) bool { return true })
		}},
		{"Disordered", func(t *testing.T, l *core.Locker) {
			outer := held(t, l, t.Context(), "l")
			defer release(t, outer)
			_, _ = l.LockAll(outer.Context(), []string{"k", "l", "m"})
		}},
		{"Disordered", func(t *testing.T, l *core.Locker) {
			outer := held(t, l, t.Context(), "l")
			defer release(t, outer)
			_, _ = l.Lock(outer.Context(), "k")
		}},
	} {
		t.Run(c.which, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newStore()
				l := newLocker(t, s, core.WithObserver(bad{c.which}))
				wantPanic(t, "at "+c.which, func() { c.do(t, l) })
				synctest.Wait()
				for _, key := range []string{"k", "l", "m", "n"} {
					if h := s.holder(key); h != "" {
						t.Errorf("%s still holds %q", h, key)
					}
				}
				if n := core.Turns(l); n != 0 {
					t.Errorf("%d grants are left; Close would wait for them", n)
				}
			})
		})
	}
}

func TestAPanicOfTheObserverInTheBackgroundIsLoggedAndNothingElse(t *testing.T) {
	for _, which := range []string{"Lost", "Renewed", "Released"} {
		t.Run(which, func(t *testing.T) {
			text := logtest.Default(t).String
			synctest.Test(t, func(t *testing.T) {
				s := newStore()
				lost := make(chan core.Loss, 2)
				l := newLocker(t, s, core.Watchdog(9*time.Second), core.WithObserver(bad{which}),
					core.OnLost(func(loss core.Loss) { lost <- loss }))
				one, two := held(t, l, t.Context(), "one"), held(t, l, t.Context(), "two")
				time.Sleep(20 * time.Second)
				for _, lease := range []*core.Lease{one, two} {
					if err := lease.Err(); err != nil {
						t.Fatalf("after two renewals: %v", err)
					}
				}
				s.Expire("one")
				<-one.Context().Done()
				if loss := <-lost; string(loss.Key) != "one" {
					t.Errorf("OnLost was told of %q", string(loss.Key))
				}
				wantErr(t, one.Release(t.Context()), core.ErrLost)
				time.Sleep(20 * time.Second)
				if err := two.Err(); err != nil {
					t.Errorf("the watchdog does not renew any more: %v", err)
				}
				release(t, two)
				if n := core.Turns(l); n != 0 {
					t.Errorf("%d grants are left; Close would wait for them", n)
				}
			})
			if got := text(); !strings.Contains(got, "callback=Observation."+which) ||
				!strings.Contains(got, "at "+which) || !strings.Contains(got, "callback_test.go") {
				t.Errorf("the log does not say which callback panicked, with what, and where:\n%s", got)
			}
		})
	}
}

func TestAPanicOfOnLostIsLogged(t *testing.T) {
	text := logtest.Default(t).String
	synctest.Test(t, func(t *testing.T) {
		s := newStore()
		l := newLocker(t, s, core.OnLost(func(core.Loss) { panic("no pager") }))
		for range 100 { // one line a minute
			lease := held(t, l, t.Context(), "k")
			s.Expire("k")
			wantErr(t, lease.Release(t.Context()), core.ErrLost)
		}
	})
	if got := text(); strings.Count(got, "no pager") != 1 || !strings.Contains(got, "callback=OnLost") {
		t.Errorf("want one line, have:\n%s", got)
	}
}

func TestAPanicBeforeTheLockKeepsNoShareOfAPrincipal(t *testing.T) {
	who := func(context.Context, core.Request) (string, error) { return "alice", nil }
	for name, c := range map[string]struct {
		want  string
		which string
		fault func(memstore.Request) memstore.Fault
		opts  []core.GuardOption
	}{
		"KeyFunc": {want: "no key", opts: []core.GuardOption{core.KeyFunc(func(context.Context, core.Request) ([]string, error) {
			panic("no key")
		})}},
		"principal": {want: "nobody", opts: []core.GuardOption{core.PerPrincipal(func(context.Context, core.Request) (string, error) {
			panic("nobody")
		}, 1, 1)}},
		"Start":    {want: "at Start", which: "Start", opts: []core.GuardOption{core.PerPrincipal(who, 1, 1)}},
		"Acquired": {want: "at Acquired", which: "Acquired", opts: []core.GuardOption{core.PerPrincipal(who, 1, 1)}},
		"Rejected": {want: "at Rejected", which: "Rejected", opts: []core.GuardOption{core.KeyFunc(
			func(context.Context, core.Request) ([]string, error) { return nil, nil },
		)}},
		"Bypassed": {
			want: "at Bypassed", which: "Bypassed",
			fault: always(memstore.Unreachable),
			opts:  []core.GuardOption{core.PerPrincipal(who, 1, 1), core.FailOpen()},
		},
	} {
		t.Run(name, func(t *testing.T) {
			logtest.Default(t)
			synctest.Test(t, func(t *testing.T) {
				s := newStore()
				s.Intercept(c.fault)
				l := newLocker(t, s, core.WithObserver(bad{c.which}))
				g := core.Serialize(l, "k", c.opts...)
				wantPanic(t, c.want, func() {
					g.Do(t.Context(), noRequest{}, func(context.Context) bool {
						t.Error("the handler ran")
						return true
					})
				})
				s.Intercept(nil)
				if h := s.holder("k"); h != "" {
					t.Errorf("%s still holds the lock", h)
				}
				if name != "KeyFunc" && name != "Rejected" {
					if n := core.Principals(g); n != 0 {
						t.Errorf("%d principals have a share still", n)
					}
				}
			})
		})
	}
}

// noRequest is a request with a route and nothing else.
type noRequest struct{}

func (noRequest) Route() (string, bool)        { return "/", true }
func (noRequest) Param(string) (string, error) { return "", adapter.ErrNoParam }
func (noRequest) Header(string) []string       { return nil }
func (noRequest) Query(string) []string        { return nil }
func (noRequest) Body(int64) ([]byte, error)   { return nil, nil }
func (noRequest) Native() any                  { return nil }
func (noRequest) Value(any) any                { return nil }

func TestCloseTwiceAtOnceEndsBoth(t *testing.T) {
	for range 50 {
		synctest.Test(t, func(t *testing.T) {
			l := newLocker(t, newStore())
			lease := held(t, l, t.Context(), "k")
			ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
			defer cancel()
			errs := make(chan error, 3)
			for range cap(errs) {
				go func() { errs <- l.Close(ctx) }()
			}
			synctest.Wait()
			release(t, lease)
			for range cap(errs) {
				if err := <-errs; err != nil {
					t.Error(err)
				}
			}
		})
	}
}

func TestALossFoundByAReleaseIsReportedWhileTheStoreIsAway(t *testing.T) {
	for name, opts := range map[string][]core.LockerOption{
		"renewed": {core.Watchdog(9 * time.Second)},
		"fixed":   {core.TTL(9 * time.Second)},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newStore()
				var heard []core.Loss
				var mu sync.Mutex
				l := newLocker(t, s, append(opts, core.OnLost(func(loss core.Loss) {
					mu.Lock()
					defer mu.Unlock()
					heard = append(heard, loss)
				}))...)
				lease := held(t, l, t.Context(), "k")
				s.Intercept(always(memstore.Unreachable))
				core.HoldWatchdog(l)
				time.Sleep(10 * time.Second)
				err := lease.Release(t.Context())
				wantErr(t, err, core.ErrLost)
				wantErr(t, err, core.ErrUnavailable)
				wantErr(t, context.Cause(lease.Context()), core.ErrLost)
				synctest.Wait()
				mu.Lock()
				defer mu.Unlock()
				want := observe.LossUnavailable
				if name == "fixed" {
					want = observe.LossExpired
				}
				if len(heard) != 1 || heard[0].Reason != want {
					t.Errorf("OnLost was told %v, want one loss because of %q", heard, want)
				}
				s.Intercept(nil)
			})
		})
	}
}

func TestAReleaseInTimeIsNoLossThoughTheStoreIsAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStore()
		l := newLocker(t, s, core.Watchdog(9*time.Second), core.OnLost(func(loss core.Loss) { t.Errorf("told: %v", loss) }))
		lease := held(t, l, t.Context(), "k")
		s.Intercept(always(memstore.Unreachable))
		err := lease.Release(t.Context())
		wantErr(t, err, core.ErrUnavailable)
		if errors.Is(err, core.ErrLost) {
			t.Errorf("the work was done in time: %v", err)
		}
		s.Intercept(nil)
	})
}
