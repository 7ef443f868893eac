package core_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/memstore"
	"github.com/interlock-go/interlock/core/observe"
	"github.com/interlock-go/interlock/core/reason"
	"github.com/interlock-go/interlock/internal/logtest"
)

// inFarWorld is inWorld with a store that a round trip of 30 ms is away.
func inFarWorld(t *testing.T, f func(w *world), opts ...core.LockerOption) {
	t.Helper()
	inWorld(t, func(w *world) {
		w.store.Intercept(always(memstore.Delay(trip / 2)))
		f(w)
	}, opts...)
}

// answered runs a request, and returns how long its client has waited for the answer.
func (w *world) answered(g *core.Guard, req core.Request, f func()) time.Duration {
	w.Helper()
	begin := time.Now()
	w.holding(g, req, f)
	return time.Since(begin)
}

func TestTheAnswerDoesNotWaitForTheRelease(t *testing.T) {
	for name, c := range map[string]struct {
		opts []core.GuardOption
		want time.Duration
	}{
		"default":                             {nil, 2 * trip},
		"answer first":                        {[]core.GuardOption{core.AnswerFirst()}, trip},
		"answer first, fixed lease":           {[]core.GuardOption{core.AnswerFirst(), core.TTL(time.Minute)}, trip},
		"answer first, requests that share":   {[]core.GuardOption{core.AnswerFirst(), core.Shared()}, trip},
		"answer first, permits":               {[]core.GuardOption{core.AnswerFirst(), core.Permits(2)}, trip},
		"answer first, two locks":             {[]core.GuardOption{core.AnswerFirst(), core.And("b/{id}")}, 2 * trip}, // taken in order
		"answer first, and a check before it": {[]core.GuardOption{core.AnswerFirst(), core.CheckAnswer()}, 2 * trip},
	} {
		t.Run(name, func(t *testing.T) {
			inFarWorld(t, func(w *world) {
				g := core.Serialize(w.locker, "a/{id}", c.opts...)
				var lease *core.Lease
				begin := time.Now()
				refusal := g.Do(w.Context(), one, func(ctx context.Context) bool {
					lease = core.LeaseFromContext(ctx)
					return false // then a check comes before the answer
				})
				if took := time.Since(begin); took != c.want || refusal != nil {
					w.Errorf("answered after %v, refusal %v; want %v", took, refusal, c.want)
				}
				// In this process the lease has ended at once.
				if err := lease.Err(); !errors.Is(err, core.ErrReleased) || context.Cause(lease.Context()) != core.ErrReleased { //nolint:errorlint // never wrapped
					w.Errorf("the lease after the answer: %v, %v", err, context.Cause(lease.Context()))
				}
				if err := lease.Release(w.Context()); err != nil { // waits for the release of the rule
					w.Error(err)
				}
				synctest.Wait() // the observer is called after the lease has ended
				if released, held := w.store.count(memstore.Release), w.held(); released != len(lease.Keys()) || len(held) != 0 {
					w.Errorf("%d releases, held: %v", released, held)
				}
				if got := w.ledger.String(); got != g.Name()+" acquired true; "+g.Name()+" released true" {
					w.Errorf("observed: %s", got)
				}
			})
		})
	}
}

// A client that asks again at once finds the release of its previous request under way.
func TestTheNextRequestWaitsForTheReleaseThatIsUnderWay(t *testing.T) {
	for name, opts := range map[string][]core.GuardOption{
		"alone":               nil,
		"few may wait":        {core.MaxWaiters(1)},
		"principal with one":  {core.PerPrincipal(tenant, 1, 1)},
		"requests that share": {core.Shared()},
		"one permit":          {core.Permits(1)},
	} {
		t.Run(name, func(t *testing.T) {
			inFarWorld(t, func(w *world) {
				g := core.Serialize(w.locker, "account/{id}", append(opts, core.AnswerFirst())...)
				req := of("a", "1")
				for i := range 3 {
					// The release that is under way, the acquire.
					want := 2 * trip
					if i == 0 {
						want = trip
					}
					if took := w.answered(g, req, func() {}); took > want {
						w.Errorf("request %d: answered after %v; want at most %v", i, took, want)
					}
					if name != "alone" {
						continue
					}
					if acquires, releases := w.acquires(), w.store.count(memstore.Release); acquires != i+1 || releases > i+1 {
						w.Errorf("%d requests took %d acquires and %d releases", i+1, acquires, releases)
					}
				}
			})
		})
	}
}

// A principal is not refused for a lock that its answered request gives back.
func TestThePrincipalsShareEndsBeforeTheAnswer(t *testing.T) {
	inFarWorld(t, func(w *world) {
		g := core.Serialize(w.locker, "account/{id}", core.PerPrincipal(tenant, 1, 1), core.AnswerFirst())
		w.holding(g, of("a", "1"), func() {})
		w.forgotten(g)
		w.holding(g, of("a", "2"), func() {})
	})
}

// There is no request to wait for, so the next caller has the lock before the answer.
func TestAHandOffComesBeforeTheAnswer(t *testing.T) {
	inFarWorld(t, func(w *world) {
		g := core.Serialize(w.locker, "account/{id}", core.AnswerFirst())
		var leave func()
		w.holding(g, one, func() { leave = w.enter(w.Context(), g, one) })
		held := w.locker.Held() // no other goroutine has run
		if len(held) != 1 || !held[0].Held || held[0].Waiters != 0 || w.store.count(memstore.Release) != 0 {
			w.Errorf("%+v after %d releases; want the lock with the next caller", held, w.store.count(memstore.Release))
		}
		if got := w.ledger.String(); !strings.Contains(got, "released true") {
			w.Errorf("observed: %s", got)
		}
		leave()
	})
}

func TestAPanicPassesThroughWhileTheReleaseIsUnderWay(t *testing.T) {
	inFarWorld(t, func(w *world) {
		g := core.Serialize(w.locker, "account/{id}", core.AnswerFirst())
		begin := time.Now()
		func() {
			defer func() {
				if p, took := recover(), time.Since(begin); p != "value" || took != trip {
					w.Errorf("panic %v after %v; want %v", p, took, trip)
				}
			}()
			_ = g.Do(w.Context(), one, func(context.Context) bool { panic("value") })
		}()
		time.Sleep(trip)
		synctest.Wait()
		if held := w.held(); len(held) != 0 {
			w.Errorf("held: %v", held)
		}
	})
}

func TestALossFoundByTheReleaseIsReportedAfterTheAnswer(t *testing.T) {
	for name, c := range map[string]struct {
		disturb func(w *world)
		want    string
		loss    observe.LossReason
	}{
		"lost": {
			func(w *world) { w.store.Expire("account/1") },
			"r acquired true; r released false", observe.LossDeleted,
		},
		"store down": {
			func(w *world) {
				w.store.Intercept(always(memstore.Fault{Before: trip / 2, After: trip / 2, Err: core.ErrUnavailable}))
			},
			"r acquired true; r released false", "",
		},
	} {
		t.Run(name, func(t *testing.T) {
			losses := make(chan core.Loss, 1)
			inFarWorld(t, func(w *world) {
				g := core.Serialize(w.locker, "account/{id}", core.Name("r"), core.AnswerFirst(), core.OnLost(func(l core.Loss) { losses <- l }))
				if took := w.answered(g, one, func() { c.disturb(w) }); took != trip {
					w.Errorf("answered after %v; want %v", took, trip)
				}
				if got := w.ledger.String(); got != "r acquired true" {
					w.Errorf("observed before the store has answered: %s", got)
				}
				time.Sleep(trip)
				synctest.Wait()
				if got := w.ledger.String(); got != c.want {
					w.Errorf("observed %s; want %s", got, c.want)
				}
				select {
				case l := <-losses:
					if l.Reason != c.loss || l.Answered != "yes" || l.Key != "account/1" || l.Route == "" {
						w.Errorf("%v", l)
					}
				default:
					if c.loss != "" {
						w.Error("OnLost was not told")
					}
				}
				w.store.Intercept(nil)
			})
		})
	}
}

func TestAnAnswerThatIsCheckedIsHeldBackBeforeTheRelease(t *testing.T) {
	inFarWorld(t, func(w *world) {
		g := core.Serialize(w.locker, "account/{id}", core.AnswerFirst(), core.CheckAnswer())
		begin := time.Now()
		refusal := g.Do(w.Context(), one, func(context.Context) bool {
			w.store.Expire("account/1")
			return false
		})
		if took := time.Since(begin); refusal == nil || refusal.Reason != reason.Lost || took != 2*trip {
			w.Errorf("refusal %+v after %v; want a loss after the acquire and the check, %v", refusal, took, 2*trip)
		}
	})
}

// Close, and a second call of Release, wait for a release that its request did not wait for.
func TestCloseWaitsForReleasesThatAnswersDidNotWaitFor(t *testing.T) {
	inFarWorld(t, func(w *world) {
		w.holding(core.Serialize(w.locker, "account/{id}", core.AnswerFirst()), one, func() {})
		begin := time.Now()
		if err := w.locker.Close(w.Context()); err != nil {
			w.Error(err)
		}
		if took, got := time.Since(begin), w.ledger.String(); took != trip || !strings.HasSuffix(got, "released true") {
			w.Errorf("closed after %v, observed %s; want %v", took, got, trip)
		}
		if held := w.held(); len(held) != 0 {
			w.Errorf("held: %v", held)
		}
	})
}

// A store that does not answer keeps requests waiting, as without the option, and not an
// unbounded number of goroutines.
func TestSoManyReleasesAreUnderWayBehindAnswersAtMost(t *testing.T) {
	const most = 256
	inWorld(t, func(w *world) {
		g := core.Serialize(w.locker, "account/{id}", core.AnswerFirst())
		w.store.Intercept(func(r memstore.Request) memstore.Fault {
			if r.Op != memstore.Release {
				return memstore.Fault{}
			}
			return memstore.Delay(trip / 2)
		})
		for round := range 2 {
			for i := range most {
				if took := w.answered(g, request{"id": fmt.Sprint(round, "/", i)}, func() {}); took != 0 {
					w.Fatalf("request %d waited %v for its release", i, took)
				}
			}
			if took := w.answered(g, request{"id": "last"}, func() {}); took != trip {
				w.Errorf("one more request waited %v for its release; want %v", took, trip)
			}
			synctest.Wait() // all have been answered
		}
	})
}

// The goroutine is the library's: no server would recover a panic there.
func TestAPanicOfTheObserverAfterTheAnswerIsLogged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		logged := logtest.Default(t)
		store := newStore()
		store.Intercept(always(memstore.Delay(trip / 2)))
		locker := newLocker(t, store, core.WithObserver(released(func() { panic("observer") })))
		g := core.Serialize(locker, "account/{id}", core.AnswerFirst())
		if refusal := g.Do(t.Context(), one, func(context.Context) bool { return true }); refusal != nil {
			t.Fatal(refusal.Err)
		}
		time.Sleep(trip)
		synctest.Wait()
		if !strings.Contains(logged.String(), "panic=observer") {
			t.Errorf("logged %q", logged)
		}
	})
}

// released is an observer of releases.
type released func()

func (f released) Start(ctx context.Context, _ observe.Operation) (context.Context, observe.Observation) {
	return ctx, observe.Observation{Released: func(observe.Released) { f() }}
}

func TestAnswerFirstNeedsARuleThatWaits(t *testing.T) {
	for name, c := range map[string]struct {
		locker []core.LockerOption
		opts   []core.GuardOption
	}{
		"of the rule":   {nil, []core.GuardOption{core.AnswerFirst(), core.Wait(0)}},
		"of the locker": {[]core.LockerOption{core.Wait(0)}, []core.GuardOption{core.AnswerFirst()}},
	} {
		t.Run(name, func(t *testing.T) {
			locker := newLocker(t, newStore(), c.locker...)
			_, err := core.NewGuard(locker, "account/{id}", c.opts...)
			if !errors.Is(err, core.ErrConfig) || !strings.Contains(err.Error(), "AnswerFirst with Wait(0)") {
				t.Errorf("%v", err)
			}
			if _, err := core.NewGuard(locker, "account/{id}", append(c.opts, core.Wait(time.Second))...); err != nil {
				t.Error(err)
			}
		})
	}
}
