package core_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/reason"
	"github.com/interlock-go/interlock/internal/logtest"
)

// plan is the number of permits of the plan that a request names.
func plan(_ context.Context, req core.Request) (int, error) {
	name := strings.Join(req.Header("X-Plan"), "")
	switch name {
	case "":
		return 0, fmt.Errorf("%w: no plan", core.ErrKey)
	case "unknown":
		return 0, errors.New("no row for alice in table plans")
	}
	n, ok := map[string]int{"gold": 2, "free": 1, "closed": 0, "negative": -1, "most": 1024, "more": 1025}[name]
	if !ok {
		return 0, errors.New("a plan that the test does not have")
	}
	return n, nil
}

func on(plan, id string) request { return request{"X-Plan": plan, "id": id} }

func TestTheNumberOfPermitsComesFromTheRequest(t *testing.T) {
	inWorld(t, func(w *world) {
		logged := logtest.Default(w.T)
		g := core.AtMostFunc(w.locker, plan, "tenant/{id}", core.Wait(0))
		other := newLocker(w.T, w.store)
		there := core.AtMostFunc(other, plan, "tenant/{id}", core.Wait(0))
		w.holding(g, on("gold", "1"), func() {
			w.holding(there, on("gold", "1"), func() {
				w.refused(w.Context(), g, on("gold", "1"), reason.Full)
				w.refused(w.Context(), there, on("gold", "1"), reason.Full)
			})
			w.holding(g, on("gold", "1"), func() {}) // its place is free again
		})
		w.holding(g, on("free", "2"), func() { w.refused(w.Context(), there, on("free", "2"), reason.Full) })
		w.holding(g, on("most", "3"), func() {})
		if text := logged.String(); text != "" {
			w.Errorf("logged, though nothing is wrong:\n%s", text)
		}
	})
}

func TestARequestWithoutANumberIsRefusedBeforeTheStoreIsAsked(t *testing.T) {
	for name, c := range map[string]struct {
		plan string
		want reason.Reason
		err  error
		line string // in the log
	}{
		"none of them":     {plan: "closed", want: reason.Full, err: core.ErrFull},
		"negative":         {plan: "negative", want: reason.Misconfigured, err: core.ErrConfig, line: "returned -1"},
		"too many":         {plan: "more", want: reason.Misconfigured, err: core.ErrConfig, line: "returned 1025"},
		"an error":         {plan: "unknown", want: reason.Internal, line: "no row for"},
		"a client's error": {plan: "", want: reason.BadKey, err: core.ErrKey},
	} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, func(w *world) {
				logged := logtest.Default(w.T)
				g := core.AtMostFunc(w.locker, plan, "tenant/{id}", core.Wait(time.Minute), core.Name("r"))
				begin := time.Now()
				refusal := w.refused(w.Context(), g, on(c.plan, "1"), c.want)
				if c.err != nil && !errors.Is(refusal.Err, c.err) {
					w.Errorf("%v; want %v", refusal.Err, c.err)
				}
				if w.acquires() != 0 || time.Since(begin) != 0 {
					w.Errorf("%d requests to the store after %v; want none, at once", w.acquires(), time.Since(begin))
				}
				if got := w.ledger.String(); !strings.HasPrefix(got, "r rejected") {
					w.Errorf("observed %q; want a rejected request", got)
				}
				if text := logged.String(); (text != "") != (c.line != "") || !strings.Contains(text, c.line) {
					w.Errorf("logged %q; want %q", text, c.line)
				}
			})
		})
	}
}

func TestARuleWithoutOneWayToFindItsNumberIsRefusedAtRegistration(t *testing.T) {
	l := newLocker(t, newStore())
	for name, register := range map[string]func(){
		"no function":       func() { core.AtMostFunc(l, nil, "a") },
		"a number, too":     func() { core.AtMostFunc(l, plan, "a", core.Permits(3)) },
		"shared":            func() { core.AtMostFunc(l, plan, "a", core.Shared()) },
		"reads that share":  func() { core.AtMostFunc(l, plan, "a", core.ShareReads()) },
		"a broken template": func() { core.AtMostFunc(l, plan, "a}") },
	} {
		func() {
			defer func() {
				if err, _ := recover().(error); !errors.Is(err, core.ErrConfig) {
					t.Errorf("%s: panicked with %v; want ErrConfig", name, err)
				}
			}()
			register()
		}()
	}
}

// The rule of a tenant stands outside of the rule for all: a request that waits for a place of
// its tenant keeps none of the places for all. Every request takes the two in this order, so
// that no two of them wait for each other.
func TestTheWaitersOfATenantKeepNoPlaceOfTheOthers(t *testing.T) {
	inWorld(t, func(w *world) {
		tenant := core.AtMost(w.locker, 2, "export/tenant/{id}", core.Wait(time.Minute))
		all := core.AtMost(w.locker, 3, "export", core.Wait(time.Minute))
		var mu sync.Mutex
		var calls sync.WaitGroup
		inside, most := map[string]int{}, map[string]int{}
		total, mostTotal, leave := 0, 0, make(chan struct{})
		run := func(id string) {
			refusal := tenant.Do(w.Context(), request{"id": id}, func(ctx context.Context) bool {
				refusal := all.Do(ctx, request{"id": id}, func(context.Context) bool {
					mu.Lock()
					inside[id]++
					total++
					most[id], mostTotal = max(most[id], inside[id]), max(mostTotal, total)
					mu.Unlock()
					<-leave
					mu.Lock()
					defer mu.Unlock()
					inside[id]--
					total--
					return true
				})
				return refusal == nil
			})
			if refusal != nil {
				w.Errorf("a request of %s: %v", id, refusal.Err)
			}
		}
		for range 6 {
			calls.Go(func() { run("a") })
		}
		synctest.Wait()
		calls.Go(func() { run("b") })
		synctest.Wait()
		calls.Go(func() { run("c") })
		synctest.Wait()
		mu.Lock()
		if inside["a"] != 2 || inside["b"] != 1 || inside["c"] != 0 {
			w.Errorf("inside %v; want 2 of a, and b beside the waiters of a, and no fourth in all", inside)
		}
		mu.Unlock()
		close(leave)
		calls.Wait()
		if most["a"] > 2 || mostTotal > 3 || total != 0 {
			w.Errorf("at most %v, and %d in all, %d left; want 2 of a tenant, and 3 in all", most, mostTotal, total)
		}
	})
}
