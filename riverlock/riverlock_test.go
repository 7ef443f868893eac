package riverlock_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/riverqueue/river"
	"github.com/riverqueue/river/rivertype"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/idempotency"
	"github.com/interlock-go/interlock/core/idempotency/admin"
	"github.com/interlock-go/interlock/core/idempotency/endpoint"
	"github.com/interlock-go/interlock/core/idempotency/once"
	"github.com/interlock-go/interlock/core/memstore"
	"github.com/interlock-go/interlock/riverlock"
)

func TestAJobWithoutItsLockIsSnoozedAndItsWorkerIsFree(t *testing.T) {
	inWorld(t, func(w *world) {
		guard := riverlock.Guard(core.Serialize(w.locker, "account/{account}", core.Wait(0)))
		free := w.store.Take("account/42", time.Hour)
		hot, other := job(1, `{"account": "42"}`), job(2, `{"account": "7"}`)
		begin := time.Now()
		r := w.attempt(hot, nothing, guard)
		w.want(r, snoozed, false)
		if r.pause < time.Second || r.pause > 2*time.Second || hot.Attempt != 0 || time.Since(begin) != 0 {
			w.Errorf("snoozed for %v, attempt %d, after %v; want 1 s to 2 s, no attempt, at once", r.pause, hot.Attempt, time.Since(begin))
		}
		w.want(w.attempt(other, nothing, guard), completed, true)
		free()
		w.want(w.attempt(hot, nothing, guard), completed, true)
	})
}

func TestAsManyJobsOfATenantRunAsThereArePermits(t *testing.T) {
	inWorld(t, func(w *world) {
		number := func(_ context.Context, req core.Request) (int, error) {
			if req.Native().(*rivertype.JobRow).Kind != "charge" {
				return 0, errors.New("no such job")
			}
			return 2, nil
		}
		guard := riverlock.Guard(core.AtMostFunc(w.locker, number, "tenant/{tenant}", core.Wait(0)))
		leave := make(chan struct{})
		stay := func(context.Context) error { <-leave; return nil }
		for id := range int64(2) {
			go func() { w.want(w.attempt(job(id, `{"tenant": 5}`), stay, guard), completed, true) }()
		}
		synctest.Wait()
		third := job(3, `{"tenant": 5}`)
		w.want(w.attempt(third, nothing, guard), snoozed, false)
		w.want(w.attempt(job(4, `{"tenant": 6}`), nothing, guard), completed, true)
		close(leave)
		synctest.Wait()
		w.want(w.attempt(third, nothing, guard), completed, true)
	})
}

func TestSnoozesGrowBetweenTheirBounds(t *testing.T) {
	inWorld(t, func(w *world) {
		guard := riverlock.Guard(core.Serialize(w.locker, "a", core.Wait(0)), riverlock.Snooze(time.Second, 8*time.Second))
		defer w.store.Take("a", 24*time.Hour)()
		row := job(1, `{}`)
		var long, short int
		for n := range 200 {
			pause := w.attempt(row, nothing, guard).pause
			if upper := time.Second << min(n+1, 3); pause < time.Second || pause > upper {
				w.Errorf("snooze %d is %v; want 1 s to %v", n, pause, upper)
			}
			if pause > 6*time.Second {
				long++
			}
			if pause < 3*time.Second {
				short++
			}
		}
		if long == 0 || short == 0 {
			w.Errorf("%d of 200 snoozes are above 6 s, and %d below 3 s; want both, at random", long, short)
		}
	})
}

func TestAJobThatIsRefusedForTooLongFails(t *testing.T) {
	inWorld(t, func(w *world) {
		guard := riverlock.Guard(core.Serialize(w.locker, "a", core.Wait(0)), riverlock.GiveUp(10*time.Second))
		free := w.store.Take("a", time.Hour)
		row := job(1, `{}`)
		for range 2 {
			w.want(w.attempt(row, nothing, guard), snoozed, false)
			time.Sleep(5 * time.Second)
		}
		for range 2 { // the retries of River, too
			r := w.attempt(row, nothing, guard)
			if w.want(r, retryable, false); !errors.Is(r.err, core.ErrHeld) {
				w.Errorf("%v; want %v", r.err, core.ErrHeld)
			}
		}
		free()
		failed := errors.New("the bank is closed")
		w.want(w.attempt(row, func(context.Context) error { return failed }, guard), retryable, true)
		free = w.store.Take("a", time.Hour)
		w.want(w.attempt(row, nothing, guard), snoozed, false) // it has run since
		free()
	})
}

func TestWithoutItsStoreAJobIsSnoozed(t *testing.T) {
	inWorld(t, func(w *world) {
		w.store.Intercept(func(memstore.Request) memstore.Fault { return memstore.Unreachable })
		w.want(w.attempt(job(1, `{}`), nothing, riverlock.Guard(core.Serialize(w.locker, "a", core.Wait(0)))), snoozed, false)
		w.want(w.attempt(job(1, `{}`), nothing, riverlock.Idempotent(w.engine)), snoozed, false)
		w.store.Intercept(nil)
	})
}

func TestAJobThatLosesItsLockEndsAndIsRetried(t *testing.T) {
	inWorld(t, func(w *world) {
		guard := riverlock.Guard(core.Serialize(w.locker, "a", core.Wait(0)))
		var cause error
		r := w.attempt(job(1, `{}`), func(ctx context.Context) error {
			w.store.Expire("a")
			<-ctx.Done()
			cause = context.Cause(ctx)
			return ctx.Err()
		}, guard)
		if w.want(r, retryable, true); !errors.Is(cause, core.ErrLost) || !errors.Is(r.err, core.ErrLost) {
			w.Errorf("the context ended by %v, the job by %v; want %v", cause, r.err, core.ErrLost)
		}
	})
}

func TestWhatARuleFindsInAJob(t *testing.T) {
	for name, c := range map[string]struct {
		template, args, metadata string
		want                     string // the key; empty: an error, which River retries
	}{
		"a text":                   {template: "a/{account}", args: `{"account": "x y"}`, want: "a/x%20y"},
		"a number, digit by digit": {template: "a/{id:int}", args: `{"id": 9007199254740993}`, want: "a/9007199254740993"},
		"a truth":                  {template: "a/{dry}", args: `{"dry": true}`, want: "a/true"},
		"a nested field":           {template: "a/{to.bank.id}", args: `{"to": {"bank": {"id": "b"}}}`, want: "a/b"},
		"metadata":                 {template: "a/{tenant}", args: `{}`, metadata: `{"tenant": "t", "snoozes": 3}`, want: "a/t"},
		"metadata, as a header":    {template: "a/{header.Tenant}", args: `{}`, metadata: `{"tenant": "t"}`, want: "a/t"},
		"of both the arguments":    {template: "a/{tenant}", args: `{"tenant": "args"}`, metadata: `{"tenant": "t"}`, want: "a/args"},
		"no value in metadata":     {template: "a/{snoozes}", args: `{}`, metadata: `{"snoozes": 3}`},
		"null hides metadata":      {template: "a/{tenant}", args: `{"tenant": null}`, metadata: `{"tenant": "t"}`},
		"a list":                   {template: "a/{ids}", args: `{"ids": [1]}`},
		"an object":                {template: "a/{to}", args: `{"to": {"id": 1}}`},
		"a dot in a name":          {template: "a/{to.id}", args: `{"to.id": 1}`},
		"no field":                 {template: "a/{nope}", args: `{"account": "x"}`},
		"no object":                {template: "a/{account}", args: `["account"]`},
	} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, func(w *world) {
				if c.metadata == "" {
					c.metadata = "{}"
				}
				rule := core.Serialize(w.locker, c.template, core.Wait(0))
				for _, chain := range [][]rivertype.WorkerMiddleware{
					{riverlock.Guard(rule)}, {riverlock.Idempotent(w.engine.With(idempotency.Under(rule)))},
				} {
					got := ""
					r := w.attempt(job(1, c.args, c.metadata), func(ctx context.Context) error {
						got = core.LeaseFromContext(ctx).Key()
						return nil
					}, chain...)
					fate := completed
					if c.want == "" {
						fate = retryable
					}
					if w.want(r, fate, c.want != ""); got != c.want {
						w.Errorf("locked %q; want %q", got, c.want)
					}
				}
			})
		})
	}
}

func TestWhatBecomesOfAJob(t *testing.T) {
	broken := errors.New("the bank is closed")
	returns := func(err error) func(context.Context) error { return func(context.Context) error { return err } }
	for name, c := range map[string]struct {
		worker func(context.Context) error
		fate   string
		again  bool // the worker runs in the second attempt
	}{
		"done":      {worker: returns(nil), fate: completed},
		"an error":  {worker: returns(broken), fate: retryable, again: true},
		"final":     {worker: returns(once.Final(broken)), fate: cancelled},
		"cancelled": {worker: returns(river.JobCancel(broken)), fate: cancelled},
		"snoozed":   {worker: returns(river.JobSnooze(time.Minute)), fate: snoozed, again: true},
		"marked": {worker: func(ctx context.Context) error {
			if err := idempotency.MarkEffect(ctx); err != nil {
				return err
			}
			return river.JobCancel(broken)
		}, fate: cancelled},
	} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, func(w *world) {
				chain := []rivertype.WorkerMiddleware{
					riverlock.Guard(core.Serialize(w.locker, "account/{account}", core.Wait(0))), riverlock.Idempotent(w.engine),
				}
				row := job(1, `{"account": "42"}`)
				r := w.attempt(row, c.worker, chain...)
				if w.want(r, c.fate, true); r.pause != 0 && r.pause != time.Minute {
					w.Errorf("snoozed for %v; want the worker's minute", r.pause)
				}
				w.want(w.attempt(row, c.worker, chain...), c.fate, c.again)
				changed := *row
				changed.EncodedArgs = []byte(`{"account": "7"}`)
				if !c.again {
					r := w.attempt(&changed, c.worker, chain...)
					if w.want(r, cancelled, false); !errors.Is(r.err, idempotency.ErrKeyReused) {
						w.Errorf("other arguments: %v; want %v", r.err, idempotency.ErrKeyReused)
					}
				}
				later := *row
				later.CreatedAt = row.CreatedAt.Add(time.Microsecond) // the same ID, of another schema
				w.want(w.attempt(&later, nothing, chain...), completed, true)
			})
		})
	}
}

// River works a job again when it has run for longer than RescueStuckJobsAfter.
func TestAJobThatRunsElsewhereIsSnoozed(t *testing.T) {
	inWorld(t, func(w *world) {
		m, row, finish := riverlock.Idempotent(w.engine), job(1, `{}`), make(chan struct{})
		second := *row
		go func() {
			w.want(w.attempt(row, func(context.Context) error { <-finish; return nil }, m), completed, true)
		}()
		synctest.Wait()
		w.want(w.attempt(&second, nothing, m), snoozed, false)
		close(finish)
		synctest.Wait()
		w.want(w.attempt(&second, nothing, m), completed, false)
	})
}

func TestAJobOfUnknownOutcomeIsRetriedUntilItIsResolved(t *testing.T) {
	inWorld(t, func(w *world) {
		dying, err := idempotency.New(w.store, idempotency.Global())
		if err != nil {
			t.Fatal(err)
		}
		key := riverlock.Key(func(*rivertype.JobRow) string { return "charge/order-7" })
		row := job(1, `{}`)
		r := w.attempt(row, func(ctx context.Context) error {
			if err := idempotency.MarkEffect(ctx); err != nil {
				t.Error(err)
			}
			now, cancel := context.WithCancel(context.Background())
			cancel()
			_ = dying.Close(now) // ends ctx
			<-ctx.Done()
			return context.Cause(ctx)
		}, riverlock.Idempotent(dying, key))
		w.want(r, retryable, true)
		w.store.LapseClaims()
		m := riverlock.Idempotent(w.engine, key)
		if r := w.attempt(row, nothing, m); !errors.Is(r.err, idempotency.ErrOutcomeUnknown) {
			w.Errorf("%v; want %v", r.err, idempotency.ErrOutcomeUnknown)
		} else {
			w.want(r, retryable, false)
		}
		found := admin.CarriedOut(endpoint.Func, endpoint.Response{})
		if err := w.engine.Resolve(t.Context(), once.ScopeOf(""), "charge/order-7", found); err != nil {
			t.Fatal(err)
		}
		w.want(w.attempt(row, nothing, m), completed, false)
	})
}

func TestAnIdempotentJobWithoutTheLockOfItsRuleIsSnoozed(t *testing.T) {
	inWorld(t, func(w *world) {
		m := riverlock.Idempotent(w.engine.With(idempotency.Under(core.Serialize(w.locker, "account/{account}", core.Wait(0)))))
		row, begin := job(1, `{"account": "42"}`), time.Now()
		free := w.store.Take("account/42", time.Hour)
		w.want(w.attempt(row, nothing, m), snoozed, false)
		free()
		w.want(w.attempt(row, nothing, m), completed, true)
		if waited := time.Since(begin); waited != 0 {
			w.Errorf("the worker waited for %v; want a snooze at once", waited)
		}
	})
}

func TestMiddlewareThatCannotWorkIsRefusedAtRegistration(t *testing.T) {
	inWorld(t, func(w *world) {
		for name, register := range map[string]func(){
			"no rule":        func() { riverlock.Guard(nil) },
			"a wait":         func() { riverlock.Guard(core.Serialize(w.locker, "a", core.Wait(time.Second))) },
			"a default wait": func() { riverlock.Guard(core.Serialize(w.locker, "a")) },
			"no engine":      func() { riverlock.Idempotent(nil) },
			"a wait of its rule": func() {
				riverlock.Idempotent(w.engine.With(idempotency.Under(core.Serialize(w.locker, "a"))))
			},
			"a wait for another run": func() { riverlock.Idempotent(w.engine.With(idempotency.WaitReplay(time.Second))) },
			"a snooze of 0":          func() { riverlock.Snooze(0, time.Second) },
			"crossing bounds":        func() { riverlock.Snooze(time.Minute, time.Second) },
			"a GiveUp of 0":          func() { riverlock.GiveUp(0) },
		} {
			func() {
				defer func() {
					if text := fmt.Sprint(recover()); !strings.HasPrefix(text, "riverlock: ") {
						w.Errorf("%s: panicked with %q; want an explanation", name, text)
					}
				}()
				register()
			}()
		}
		claim := func(context.Context, []core.Fence) error { return nil }
		riverlock.Guard(core.Fenced("a", claim), nil) // it takes no lock, and does not wait
	})
}
