package core_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/reason"
	"github.com/interlock-go/interlock/internal/logtest"
)

// tenant is the principal of a request: its header.
func tenant(_ context.Context, req core.Request) (string, error) {
	return strings.Join(req.Header("X-Tenant"), ","), nil
}

// of is a request of a principal for an account.
func of(principal, id string) request { return request{"X-Tenant": principal, "id": id} }

// enter runs a request on another goroutine until the returned function is called, and
// waits until nothing goes on any more: it is in its handler, or waits for its lock.
func (w *world) enter(ctx context.Context, g *core.Guard, req core.Request) (leave func()) {
	w.Helper()
	gate := make(chan struct{})
	go func() {
		refusal := g.Do(ctx, req, func(context.Context) bool { <-gate; return true })
		if refusal != nil && ctx.Err() == nil {
			w.Errorf("%v: %v", req, refusal.Err)
		}
	}()
	synctest.Wait()
	return func() { close(gate); synctest.Wait() }
}

// forgotten fails the test unless a rule keeps no counts.
func (w *world) forgotten(g *core.Guard) {
	w.Helper()
	if n := core.Principals(g); n != 0 {
		w.Errorf("counts of %d principals are left", n)
	}
}

func TestAPrincipalHoldsAndWaitsForSoManyLocksAtMost(t *testing.T) {
	inWorld(t, func(w *world) {
		g := core.Serialize(w.locker, "account/{id}", core.PerPrincipal(tenant, 2, 2), core.Name("r"))
		first := w.enter(w.Context(), g, of("a", "1"))
		second := w.enter(w.Context(), g, of("a", "2"))

		// A third lock is one too many, before the store hears of it.
		asked := w.acquires()
		refusal := w.refused(w.Context(), g, of("a", "3"), reason.PrincipalLimit)
		if !refusal.Retryable() || !errors.Is(refusal.Err, core.ErrPrincipalLimit) || refusal.Rule != "r" || w.acquires() != asked {
			w.Errorf("%+v after %d requests to the store; want %d", refusal, w.acquires(), asked)
		}
		if got := w.ledger.String(); !strings.HasSuffix(got, "r rejected principal-limit") {
			w.Errorf("observed %s", got)
		}
		// Another principal has a separate limit.
		w.holding(g, of("b", "3"), func() {})

		// To wait for a lock that one has takes no further lock: it is granted
		// once the other is released.
		third := w.enter(w.Context(), g, of("a", "1"))
		fourth := w.enter(w.Context(), g, of("a", "2"))
		asked = w.acquires()
		w.refused(w.Context(), g, of("a", "1"), reason.PrincipalLimit) // two wait
		if w.acquires() != asked {
			w.Error("the store was asked")
		}
		first() // the third goes in
		fifth := w.enter(w.Context(), g, of("a", "1"))
		third()
		fifth()
		second()
		fourth()
		w.forgotten(g)
		w.holding(g, of("a", "3"), func() {})
		w.forgotten(g)
	})
}

func TestAWaiterForSomebodyElsesLockCountsAsOneThatWillHoldIt(t *testing.T) {
	inWorld(t, func(w *world) {
		g := core.Serialize(w.locker, "account/{id}", core.PerPrincipal(tenant, 1, 5))
		theirs := w.enter(w.Context(), g, of("b", "1"))
		mine := w.enter(w.Context(), g, of("a", "1"))
		// Or it would hold two when the other is released.
		w.refused(w.Context(), g, of("a", "2"), reason.PrincipalLimit)
		theirs()
		w.refused(w.Context(), g, of("a", "2"), reason.PrincipalLimit)
		mine()
		w.holding(g, of("a", "2"), func() {})
		w.forgotten(g)
	})
}

func TestHoweverARequestEndsItsPrincipalGetsItsShareBack(t *testing.T) {
	full := func(w *world, opts ...core.GuardOption) *core.Guard {
		return core.Serialize(w.locker, "account/{id}", append(opts, core.PerPrincipal(tenant, 1, 1))...)
	}
	for name, end := range map[string]func(w *world) *core.Guard{
		"panic": func(w *world) *core.Guard {
			g := full(w)
			func() {
				defer func() { _ = recover() }()
				g.Do(w.Context(), of("a", "1"), func(context.Context) bool { panic("x") })
			}()
			return g
		},
		"Goexit": func(w *world) *core.Guard {
			g := full(w)
			go g.Do(w.Context(), of("a", "1"), func(context.Context) bool { runtime.Goexit(); return true })
			return g
		},
		"client gone while queued": func(w *world) *core.Guard {
			g := full(w)
			ctx, cancel := context.WithCancel(w.Context())
			other := w.enter(w.Context(), g, of("b", "1"))
			w.enter(ctx, g, of("a", "1"))
			cancel()
			synctest.Wait()
			w.refused(w.Context(), g, of("a", "1"), reason.Held) // not for the limit
			other()
			return g
		},
		"wait over": func(w *world) *core.Guard {
			g := full(w, core.Wait(time.Second))
			other := w.enter(w.Context(), g, of("b", "1"))
			w.refused(w.Context(), g, of("a", "1"), reason.Held)
			other()
			return g
		},
		"store down": func(w *world) *core.Guard {
			g := full(w)
			w.down(core.ErrUnavailable)
			w.refused(w.Context(), g, of("a", "1"), reason.Unavailable)
			w.store.Intercept(nil)
			return g
		},
		"store down, and the rule fails open": func(w *world) *core.Guard {
			g := full(w, core.FailOpen())
			w.down(core.ErrUnavailable)
			g.Do(w.Context(), of("a", "1"), func(context.Context) bool { w.forgotten(g); return true }) // it has no lock
			w.store.Intercept(nil)
			return g
		},
		"lease lost": func(w *world) *core.Guard {
			g := full(w)
			g.Do(w.Context(), of("a", "1"), func(ctx context.Context) bool {
				w.store.Expire("account/1")
				<-ctx.Done()
				// The handler is at work still.
				w.refused(w.Context(), g, of("a", "2"), reason.PrincipalLimit)
				return true
			})
			return g
		},
		"released by the handler itself": func(w *world) *core.Guard {
			g := full(w)
			g.Do(w.Context(), of("a", "1"), func(ctx context.Context) bool {
				return core.LeaseFromContext(ctx).Release(ctx) == nil
			})
			return g
		},
		"left twice": func(w *world) *core.Guard {
			g := full(w)
			section, refusal := g.Enter(w.Context(), of("a", "1"))
			if refusal != nil {
				w.Fatal(refusal.Err)
			}
			section.Leave(w.Context())
			section.Leave(w.Context())
			return g
		},
		"a key twice": func(w *world) *core.Guard {
			g := core.Serialize(w.locker, "account/{id}", core.And("account/{id}"), core.PerPrincipal(tenant, 2, 1))
			w.holding(g, of("a", "1"), func() { w.holding(g, of("a", "2"), func() {}) })
			return g
		},
	} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, func(w *world) {
				g := end(w)
				synctest.Wait()
				w.forgotten(g)
				w.holding(g, of("a", "1"), func() {})
				w.forgotten(g)
			}, core.Watchdog(3*time.Second))
		})
	}
}

func TestReenteringDoesNotWaitAndTakesNoFurtherLock(t *testing.T) {
	inWorld(t, func(w *world) {
		g := core.Serialize(w.locker, "account/{id}", core.PerPrincipal(tenant, 1, 1))
		var waiter func()
		g.Do(w.Context(), of("a", "1"), func(ctx context.Context) bool {
			waiter = w.enter(w.Context(), g, of("a", "1"))
			inner := false
			if refusal := g.Do(ctx, of("a", "1"), func(context.Context) bool { inner = true; return true }); refusal != nil || !inner {
				w.Errorf("%+v, ran %v", refusal, inner)
			}
			return true
		})
		waiter()
		w.forgotten(g)
	})
}

func TestRulesThatAreGivenOneLimitShareIt(t *testing.T) {
	shared := core.PerPrincipal(tenant, 1, 1)
	for name, c := range map[string]struct {
		locker        []core.LockerOption
		first, second []core.GuardOption
		want          reason.Reason
	}{
		"one option":          {first: []core.GuardOption{shared}, second: []core.GuardOption{shared}, want: reason.PrincipalLimit},
		"of the locker":       {locker: []core.LockerOption{shared}, want: reason.PrincipalLimit},
		"one of its own each": {first: []core.GuardOption{core.PerPrincipal(tenant, 1, 1)}, second: []core.GuardOption{core.PerPrincipal(tenant, 1, 1)}},
		"one has its own":     {locker: []core.LockerOption{shared}, second: []core.GuardOption{core.PerPrincipal(tenant, 1, 1)}},
		"only one has any":    {first: []core.GuardOption{shared}},
	} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, func(w *world) {
				first := core.Serialize(w.locker, "account/{id}", c.first...)
				second := core.Serialize(w.locker, "order/{id}", c.second...)
				w.holding(first, of("a", "1"), func() {
					if c.want != "" {
						w.refused(w.Context(), second, of("a", "1"), c.want)
					} else {
						w.holding(second, of("a", "1"), func() {})
					}
				})
			}, c.locker...)
		})
	}
}

func TestWithoutAPrincipalNoRequestRuns(t *testing.T) {
	own := errors.New("own")
	for name, c := range map[string]struct {
		principal string
		err       error
		want      reason.Reason
	}{
		"empty":            {want: reason.BadKey},
		"client's mistake": {err: fmt.Errorf("x: %w", core.ErrKey), want: reason.BadKey},
		"its own failure":  {principal: "a", err: own, want: reason.Internal},
	} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, func(w *world) {
				logged := logtest.Default(w.T)
				g := core.Serialize(w.locker, "account/{id}",
					core.PerPrincipal(func(context.Context, core.Request) (string, error) { return c.principal, c.err }, 1, 1))
				w.refused(w.Context(), g, one, c.want)
				if w.acquires() != 0 || (logged.String() != "") != (name != "client's mistake") {
					w.Errorf("%d acquires, logged %q", w.acquires(), logged)
				}
				w.forgotten(g)
			})
		})
	}
}

func TestALimitThatCannotWorkIsRefusedAtRegistration(t *testing.T) {
	inWorld(t, func(w *world) {
		for name, opts := range map[string][]core.GuardOption{
			"nil":         {core.PerPrincipal(nil, 1, 1)},
			"no lock":     {core.PerPrincipal(tenant, 0, 1)},
			"no waiter":   {core.PerPrincipal(tenant, 1, 0)},
			"fewer locks": {core.PerPrincipal(tenant, 1, 1), core.And("order/{id}")},
		} {
			if _, err := core.NewGuard(w.locker, "account/{id}", opts...); !errors.Is(err, core.ErrConfig) {
				w.Errorf("%s: %v; want ErrConfig", name, err)
			}
		}
	})
}

// All come at the same moment: exactly as many as the limit allows get in.
func TestExactlyTheLimitIsAdmittedWhenAllComeAtOnce(t *testing.T) {
	const all, held, waiting = 64, 3, 5
	inWorld(t, func(w *world) {
		g := core.Serialize(w.locker, "account/{id}", core.PerPrincipal(tenant, held, all))
		q := core.Serialize(w.locker, "account/{id}", core.PerPrincipal(tenant, all, waiting))
		theirs := w.enter(w.Context(), q, of("b", "x"))
		var in, refused [2]atomic.Int64
		start, gate := make(chan struct{}), make(chan struct{})
		var wg sync.WaitGroup
		for i := range 2 * all {
			rule, req, kind := g, of("a", fmt.Sprint(i)), 0
			if i%2 == 1 {
				rule, req, kind = q, of("a", "x"), 1
			}
			wg.Go(func() {
				<-start
				refusal := rule.Do(w.Context(), req, func(context.Context) bool {
					in[kind].Add(1)
					<-gate
					return true
				})
				switch {
				case refusal == nil:
				case refusal.Reason == reason.PrincipalLimit:
					refused[kind].Add(1)
				default:
					w.Error(refusal.Err)
				}
			})
		}
		close(start)
		synctest.Wait()
		if in[0].Load() != held || refused[0].Load() != all-held || in[1].Load() != 0 || refused[1].Load() != all-waiting {
			w.Errorf("%d and %d in, %d and %d refused", in[0].Load(), in[1].Load(), refused[0].Load(), refused[1].Load())
		}
		close(gate)
		theirs()
		wg.Wait()
		if in[1].Load() != waiting {
			w.Errorf("%d of %d waiters had their turn", in[1].Load(), waiting)
		}
		w.forgotten(g)
		w.forgotten(q)
	})
}
