package idempotency_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/idempotency"
	"github.com/interlock-go/interlock/core/idempotency/endpoint"
	"github.com/interlock-go/interlock/core/idempotency/once"
	"github.com/interlock-go/interlock/core/memstore"
	"github.com/interlock-go/interlock/internal/logtest"
)

// trip is a handler with three effects, each of them a step.
type trip struct {
	mu     sync.Mutex
	calls  []string                                             // of the services, in their order
	at     map[string]func(ctx context.Context) (string, error) // what a service does in place of its effect
	opts   map[string][]idempotency.StepOption
	failed error // the error that the last run met
}

func newTrip() *trip {
	return &trip{at: map[string]func(context.Context) (string, error){}, opts: map[string][]idempotency.StepOption{}}
}

// call is the call of a service in a step.
func (p *trip) call(ctx context.Context, name string) (string, error) {
	p.mu.Lock()
	p.calls = append(p.calls, name)
	n, at := len(p.calls), p.at[name]
	p.mu.Unlock()
	if at != nil {
		return at(ctx)
	}
	return fmt.Sprintf("%s-%d", name, n), nil
}

// carryOut carries steps out, and returns their results.
func (p *trip) carryOut(ctx context.Context, names ...string) (string, error) {
	var results []string
	for _, name := range names {
		result, err := idempotency.Step(ctx, name, func(ctx context.Context) (string, error) { return p.call(ctx, name) }, p.opts[name]...)
		if err != nil {
			p.failed = err
			return "", err
		}
		results = append(results, result)
	}
	return strings.Join(results, " "), nil
}

// handler answers with the results of the steps, or fails.
func (p *trip) handler(names ...string) handler {
	return func(ctx context.Context, _ endpoint.Attempt) (endpoint.Response, bool) {
		results, err := p.carryOut(ctx, names...)
		if err != nil {
			return endpoint.Response{Status: 500, Body: []byte("failed")}, true
		}
		return endpoint.Response{Status: 201, Body: []byte(results)}, true
	}
}

// called checks the calls of services so far.
func (w *world) called(p *trip, want string) {
	w.Helper()
	p.mu.Lock()
	defer p.mu.Unlock()
	w.want(strings.Join(p.calls, " "), want)
}

// dies sends a request with a process that stops for good in a step.
func (w *world) dies(e *idempotency.Engine, p *trip, in string, h handler) {
	w.Helper()
	ctx, end := context.WithCancel(w.Context())
	before := p.at[in]
	p.at[in] = func(context.Context) (string, error) { <-ctx.Done(); return "", ctx.Err() }
	var gone sync.WaitGroup
	gone.Go(func() { serve(w.Context(), e, post("k"), h) })
	w.Cleanup(func() { end(); gone.Wait() })
	synctest.Wait()
	w.store.LapseClaims()
	w.store.Intercept(func(_ memstore.Request) memstore.Fault { return memstore.Fault{} })
	p.mu.Lock()
	defer p.mu.Unlock()
	p.at[in] = before
}

func TestAHandlerGoesOnAfterItsLastStep(t *testing.T) {
	inBubble(t, func(w *world) {
		p := newTrip()
		h := p.handler("charge", "book", "mail")
		w.dies(w.engine(), p, "mail", h)
		w.called(p, "charge book mail")
		if r := w.record(); r.Step != "book" || r.Marked {
			w.Errorf("the record is %+v; want the last step book, and no mark", r)
		}
		w.want(serve(w.Context(), w.engine(), post("k"), h), "201 charge-1 book-2 mail-4")
		w.called(p, "charge book mail mail")
		w.want(serve(w.Context(), w.engine(), post("k"), h), "replay 201 charge-1 book-2 mail-4")
		if r := w.record(); r.Step != "" {
			w.Errorf("the answer is stored, and the record still has the step %s", r.Step)
		}
	})
}

func TestAHandlerThatFailedGoesOnAfterItsLastStep(t *testing.T) {
	inBubble(t, func(w *world) {
		p, e := newTrip(), w.engine()
		h := p.handler("charge", "book", "mail")
		broken := errors.New("no rooms today")
		p.at["book"] = func(context.Context) (string, error) { return "", broken }
		w.want(serve(w.Context(), e, post("k"), h), "500 failed")
		if p.failed != broken { //nolint:errorlint // it is the same error
			w.Errorf("Step returned %v; want the error of its function, as it is", p.failed)
		}
		other := post("k")
		other.body = "pay 2"
		w.want(serve(w.Context(), e, other, h), "idempotency-key-reused") // its steps belong to another request
		p.at["book"] = func(context.Context) (string, error) { panic("no rooms at all") }
		func() {
			defer func() { w.want(fmt.Sprint(recover()), "no rooms at all") }()
			serve(w.Context(), e, post("k"), h)
		}()
		delete(p.at, "book")
		w.want(serve(w.Context(), e, post("k"), h), "201 charge-1 book-4 mail-5")
		w.called(p, "charge book book book mail")
	})
}

// declined is an error with a code.
type declined struct{ reason string }

func (d declined) Error() string { return "declined: " + d.reason }
func (d declined) Code() string  { return d.reason }

func TestAFinalErrorOfAStepIsItsOutcome(t *testing.T) {
	inBubble(t, func(w *world) {
		p, e := newTrip(), w.engine()
		h := p.handler("charge")
		p.at["charge"] = func(context.Context) (string, error) {
			return "", fmt.Errorf("charging: %w", idempotency.Final(declined{"funds"}))
		}
		check := func(replayed bool) {
			w.Helper()
			var stored *idempotency.StepError
			var own declined
			switch {
			case !errors.As(p.failed, &stored) || stored.Text != "charging: declined: funds" || stored.Code != "funds" || stored.Step != "charge" ||
				stored.Replayed != replayed || stored.Error() != stored.Text || !errors.Is(p.failed, idempotency.ErrFinal):
				w.Errorf("Step returned %#v; want a StepError with the text and the code, and Replayed %v", p.failed, replayed)
			case errors.As(p.failed, &own) == replayed:
				w.Errorf("the error of the application is in the chain: %v; want that in the first attempt alone", !replayed)
			}
		}
		w.want(serve(w.Context(), e, post("k"), h), "500 failed")
		check(false)
		w.want(serve(w.Context(), e, post("k"), h), "500 failed")
		check(true)
		w.called(p, "charge")

		// It is the answer of a function, too: no later call changes it.
		_, err := once.Do(w.Context(), e, "trip", 1, func(ctx context.Context, _ int) (string, error) { return p.carryOut(ctx, "charge") }, once.Scoped("alice"))
		_, again := once.Do(w.Context(), e, "trip", 1, func(context.Context, int) (string, error) { return "", errors.New("it runs again") }, once.Scoped("alice"))
		if !once.Permanent(err) || again == nil || again.Error() != "charging: declined: funds" {
			w.Errorf("Do returned %v, and %v; want the final error of the step twice", err, again)
		}
	})
}

func TestStepsOfWrongFormAreRefused(t *testing.T) {
	inBubble(t, func(w *world) {
		e, ran := w.engine(), 0
		one := func(context.Context) (int, error) { ran++; return ran, nil }
		if _, err := idempotency.Step(w.Context(), "charge", one); !errors.Is(err, idempotency.ErrNoAttempt) {
			w.Errorf("outside of a handler: %v; want %v", err, idempotency.ErrNoAttempt)
		}
		var late context.Context
		serve(w.Context(), e, post("k"), func(ctx context.Context, _ endpoint.Attempt) (endpoint.Response, bool) {
			refused := func(name, because string, opts ...idempotency.StepOption) {
				w.Helper()
				before := ran
				_, err := idempotency.Step(ctx, name, one, opts...)
				if !errors.Is(err, core.ErrConfig) || !strings.Contains(err.Error(), because) || ran != before {
					w.Errorf("the step %q: %v, and its function ran %d times; want an error that says %q", name, err, ran-before, because)
				}
			}
			for _, name := range []string{"", "a b", "größe", "a\n", strings.Repeat("a", 65)} {
				refused(name, "1 to 64 characters")
			}
			refused("charge", "StepCodec", idempotency.StepCodec(nil, json.Unmarshal))
			n, err := idempotency.Step(ctx, strings.Repeat("a", 64), func(ctx context.Context) (int, error) {
				if _, err := idempotency.Step(ctx, "inner", one); !errors.Is(err, core.ErrConfig) || !strings.Contains(err.Error(), "inside of another step") {
					w.Errorf("a step inside of a step: %v", err)
				}
				if _, err := idempotency.HandOver(ctx, time.Minute); !errors.Is(err, core.ErrConfig) || !strings.Contains(err.Error(), "step is under way") {
					w.Errorf("HandOver in a step: %v", err)
				}
				return one(ctx)
			})
			if n != 1 || err != nil {
				w.Errorf("a step with the longest name: %v, %v", n, err)
			}
			refused(strings.Repeat("a", 64), "has carried out a step with this name")
			late = ctx //nolint:fatcontext // for a step after the handler
			return endpoint.Response{Status: 201}, true
		})
		if _, err := idempotency.Step(late, "late", one); !errors.Is(err, core.ErrLost) && !errors.Is(err, core.ErrReleased) {
			w.Errorf("after the handler: %v", err)
		}
		if ran != 1 {
			w.Errorf("the function ran %d times, want 1", ran)
		}
	})
}

func TestStepsOfDifferentNamesRunAtOnce(t *testing.T) {
	inBubble(t, func(w *world) {
		p, e := newTrip(), w.engine()
		var refused []error
		h := func(ctx context.Context, _ endpoint.Attempt) (endpoint.Response, bool) {
			var all sync.WaitGroup
			for _, name := range []string{"charge", "book", "mail", "mail"} {
				all.Go(func() {
					_, err := idempotency.Step(ctx, name, func(ctx context.Context) (string, error) {
						time.Sleep(time.Second)
						return p.call(ctx, name)
					})
					p.mu.Lock()
					defer p.mu.Unlock()
					if err != nil {
						refused = append(refused, err)
					}
				})
			}
			all.Wait()
			return endpoint.Response{Status: 503}, true
		}
		begin := time.Now()
		w.want(serve(w.Context(), e, post("k"), h), "503 ")
		if d := time.Since(begin); d > 3*time.Second/2 {
			w.Errorf("three steps of a second took %v at once", d)
		}
		if len(refused) != 1 || !errors.Is(refused[0], core.ErrConfig) || !strings.Contains(refused[0].Error(), "mail") {
			w.Errorf("of two steps with the name mail at once: %v; want one refused", refused)
		}
		p.at["charge"] = func(context.Context) (string, error) { return "", errors.New("the step runs again") }
		got := serve(w.Context(), e, post("k"), p.handler("charge", "book", "mail"))
		if !strings.HasPrefix(got, "201 ") || len(p.calls) != 3 {
			w.Errorf("after three steps at once a retry got %q, and the services %v; want each step stored", got, p.calls)
		}
	})
}

// A field that JSON does not have is missing in the first run, too, and not only after a crash.
func TestTheFirstRunGetsTheResultThatLaterRunsGet(t *testing.T) {
	type booking struct {
		Room    int
		private string
	}
	inBubble(t, func(w *world) {
		var got []booking
		h := func(ctx context.Context, _ endpoint.Attempt) (endpoint.Response, bool) {
			b, err := idempotency.Step(ctx, "book", func(context.Context) (booking, error) { return booking{7, "of the process"}, nil })
			if err != nil {
				w.Error(err)
			}
			got = append(got, b)
			return endpoint.Response{Status: 503}, true
		}
		e := w.engine()
		serve(w.Context(), e, post("k"), h)
		serve(w.Context(), e, post("k"), h)
		if len(got) != 2 || got[0] != (booking{Room: 7}) || got[1] != got[0] {
			w.Errorf("the two runs got %+v; want twice the room alone", got)
		}
	})
}

// The keys of a step depend on the request and the name of the step, in each attempt and in a job.
func TestAStepHasTheSameKeysInEachAttempt(t *testing.T) {
	inBubble(t, func(w *world) {
		var all []string
		h := func(ctx context.Context, _ endpoint.Attempt) (endpoint.Response, bool) {
			outside := idempotency.DownstreamKey(ctx, "charge")
			_, _ = idempotency.Step(ctx, "charge", func(ctx context.Context) (int, error) {
				first, _, done, _ := idempotency.CallKey(ctx, "POST bank/charges")
				done()
				named, _, _, _ := idempotency.CallKey(idempotency.WithCall(ctx, "fee"), "POST bank/charges")
				all = append(all, strings.Join([]string{idempotency.DownstreamKey(ctx), idempotency.DownstreamKey(ctx, "fee"), first, named}, " "))
				w.want(idempotency.DownstreamKey(ctx), outside)
				return 0, errors.New("once more")
			})
			_, _ = idempotency.Step(ctx, "book", func(ctx context.Context) (int, error) {
				first, _, _, _ := idempotency.CallKey(ctx, "POST bank/charges") // not the call of charge
				if strings.Contains(all[0], first) || first == "" {
					w.Errorf("the first calls of two steps to one target have the key %q", first)
				}
				return 0, errors.New("once more")
			})
			return endpoint.Response{Status: 503}, true
		}
		e := w.engine()
		serve(w.Context(), e, post("k"), h)
		serve(w.Context(), e, post("k"), h)
		ticket := w.handed(e, "k")
		w.take(e, ticket, nil, func(ctx context.Context) (endpoint.Response, error) {
			h(ctx, nil)
			return endpoint.Response{Status: 201}, nil
		})
		if len(all) != 3 || all[0] != all[1] || all[0] != all[2] || len(strings.Fields(all[0])) != 4 {
			w.Errorf("the keys of a step in two attempts and a job: %q; want the same", all)
		}
	})
}

// A request that was let through has no record to store a step in.
func TestAStepOfARequestWithoutARecordRuns(t *testing.T) {
	inBubble(t, func(w *world) {
		p, e := newTrip(), w.engine(idempotency.Optional(), idempotency.FailOpen())
		q := post("k")
		q.key = nil
		p.opts["charge"] = []idempotency.StepOption{idempotency.Once()}
		w.want(serve(w.Context(), e, q, p.handler("charge", "book")), "passed 201 charge-1 book-2")
		w.down()
		var key string
		p.at["mail"] = func(ctx context.Context) (string, error) { key = idempotency.DownstreamKey(ctx); return "mailed", nil }
		w.want(serve(w.Context(), e, post("k"), p.handler("mail")), "passed 201 mailed")
		if key == "" {
			w.Error("a request that passes while the store is down has no downstream key in its step")
		}
	})
}

// A job goes on where the handler has stopped, and the next job where this one has.
func TestAJobGoesOnAfterTheStepsOfTheHandler(t *testing.T) {
	inBubble(t, func(w *world) {
		p, e := newTrip(), w.engine()
		var ticket idempotency.Ticket
		w.want(serve(w.Context(), e, post("k"), func(ctx context.Context, a endpoint.Attempt) (endpoint.Response, bool) {
			if _, err := p.carryOut(ctx, "charge"); err != nil {
				w.Error(err)
			}
			answer, _ := w.giving(&ticket, replies(202, "accepted"))(ctx, a)
			if _, err := p.carryOut(ctx, "book"); !errors.Is(err, core.ErrLost) {
				w.Errorf("a step after HandOver: %v; want %v", err, core.ErrLost)
			}
			return answer, true
		}), "202 accepted")
		job := func(ctx context.Context) (endpoint.Response, error) {
			results, err := p.carryOut(ctx, "charge", "book", "mail")
			return endpoint.Response{Status: 201, Body: []byte(results)}, err
		}
		broken := errors.New("no mail today")
		p.at["mail"] = func(context.Context) (string, error) { return "", broken }
		w.take(e, ticket, broken, job)
		delete(p.at, "mail")
		w.take(w.engine(), ticket, nil, job)
		w.called(p, "charge book mail mail")
		w.want(serve(w.Context(), e, post("k"), w.unwanted), "replay 201 charge-1 book-2 mail-4")
	})
}

// unwanted is a handler that must not run.
func (w *world) unwanted(context.Context, endpoint.Attempt) (endpoint.Response, bool) {
	w.Error("the handler runs")
	return endpoint.Response{Status: 500}, true
}

// A rolling deploy runs the second version of a handler for a request that the first has begun.
func TestStepsThatTheHandlerDoesNotHaveAreLogged(t *testing.T) {
	inBubble(t, func(w *world) {
		p, e := newTrip(), w.engine()
		logged := logtest.Default(w.T)
		p.at["mail"] = func(context.Context) (string, error) { return "", errors.New("no mail today") }
		w.want(serve(w.Context(), e, post("k"), p.handler("charge", "book", "mail")), "500 failed")
		delete(p.at, "mail")
		w.want(serve(w.Context(), e, post("k"), p.handler("charge", "reserve", "mail")), "201 charge-1 reserve-4 mail-5")
		if text := logged.String(); !strings.Contains(text, "did not ask for steps") || !strings.Contains(text, "steps book") {
			w.Errorf("the log says %q; want it to name the step book", text)
		}
	})
}
