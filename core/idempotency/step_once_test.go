package idempotency_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/idempotency"
	"github.com/interlock-go/interlock/core/idempotency/admin"
	"github.com/interlock-go/interlock/core/idempotency/endpoint"
	"github.com/interlock-go/interlock/core/memstore"
)

// onceTrip is a trip with a hotel that does not deduplicate.
func onceTrip() (*trip, handler) {
	p := newTrip()
	p.opts["book"] = []idempotency.StepOption{idempotency.Once()}
	return p, p.handler("charge", "book", "mail")
}

func TestAStepWithOnceThatDiedIsUnknownAlone(t *testing.T) {
	for what, c := range map[string]struct {
		found        admin.Resolution
		want, called string
	}{
		"done":     {admin.StepDone("book", []byte(`"room 7"`)), "201 charge-1 room 7 mail-3", "charge book mail"},
		"not done": {admin.NotCarriedOut(), "201 charge-1 book-3 mail-4", "charge book book mail"},
		"answered": {admin.CarriedOut(endpoint.HTTP, endpoint.Response{Status: 201, Body: []byte("by hand")}), "replay 201 by hand", "charge book"},
	} {
		t.Run(what, func(t *testing.T) {
			inBubble(t, func(w *world) {
				p, h := onceTrip()
				w.dies(w.engine(), p, "book", h)
				e := w.engine()
				w.want(serve(w.Context(), e, post("k"), h), "idempotency-outcome-unknown")
				if r := w.record(); r.Step != "charge" || r.Open != "book" || r.Marked {
					w.Errorf("the record is %+v; want the last step charge, and book open", r)
				}
				if err := e.Resolve(w.Context(), "alice", "k", admin.StepDone("mail", nil)); !errors.Is(err, idempotency.ErrNotUnknown) {
					w.Errorf("Resolve of a step that is not open: %v; want %v", err, idempotency.ErrNotUnknown)
				}
				if err := e.Resolve(w.Context(), "alice", "k", admin.StepDone("no name", nil)); !errors.Is(err, core.ErrConfig) {
					w.Errorf("Resolve of a step with a name that is none: %v; want %v", err, core.ErrConfig)
				}
				if err := e.Resolve(w.Context(), "alice", "k", c.found); err != nil {
					w.Fatalf("Resolve: %v", err)
				}
				w.want(serve(w.Context(), e, post("k"), h), c.want)
				w.called(p, c.called)
			})
		})
	}
}

// An error, or a panic, of a step that must not run twice leaves its outcome unknown.
func TestAStepWithOnceThatFailedIsUnknown(t *testing.T) {
	timeout := errors.New("the hotel does not answer")
	for what, fails := range map[string]func(context.Context) (string, error){
		"an error": func(context.Context) (string, error) { return "", timeout },
		"a panic":  func(context.Context) (string, error) { panic(timeout) },
	} {
		t.Run(what, func(t *testing.T) {
			inBubble(t, func(w *world) {
				p, steps := onceTrip()
				var again error
				h := func(ctx context.Context, a endpoint.Attempt) (answer endpoint.Response, answered bool) {
					defer func() {
						if recover() != nil {
							answer, answered = endpoint.Response{Status: 500}, true
						}
						_, again = p.carryOut(ctx, "book")
					}()
					return steps(ctx, a)
				}
				p.at["book"] = fails
				w.want(serve(w.Context(), w.engine(), post("k"), h), "ran, then idempotency-outcome-unknown")
				if !errors.Is(again, idempotency.ErrOutcomeUnknown) {
					w.Errorf("the step once more in the same attempt: %v; want %v", again, idempotency.ErrOutcomeUnknown)
				}
				w.want(serve(w.Context(), w.engine(), post("k"), h), "idempotency-in-flight")
				time.Sleep(31 * time.Second)
				w.want(serve(w.Context(), w.engine(), post("k"), h), "idempotency-outcome-unknown")
				w.called(p, "charge book")
			})
		})
	}
}

// A handler that answers for good in spite of such a step has decided by itself.
func TestAnAnswerSettlesAnOpenStep(t *testing.T) {
	inBubble(t, func(w *world) {
		p, _ := onceTrip()
		p.at["book"] = func(context.Context) (string, error) { return "", errors.New("no answer") }
		w.want(serve(w.Context(), w.engine(), post("k"), func(ctx context.Context, _ endpoint.Attempt) (endpoint.Response, bool) {
			_, _ = p.carryOut(ctx, "book")
			return endpoint.Response{Status: 403, Body: []byte("we write a letter")}, true
		}), "403 we write a letter")
		w.want(serve(w.Context(), w.engine(), post("k"), w.unwanted), "replay 403 we write a letter")
	})
}

func TestAStepWithOnceThatHadNoEffectRunsAgain(t *testing.T) {
	inBubble(t, func(w *world) {
		p, h := onceTrip()
		refused := errors.New("connection refused")
		p.at["book"] = func(context.Context) (string, error) { return "", idempotency.NotDone(refused) }
		e := w.engine()
		w.want(serve(w.Context(), e, post("k"), h), "500 failed")
		if !errors.Is(p.failed, refused) {
			w.Errorf("Step returned %v; want %v", p.failed, refused)
		}
		delete(p.at, "book")
		w.want(serve(w.Context(), e, post("k"), h), "201 charge-1 book-3 mail-4")
	})
}

// The store may have the mark of a step that did not begin, because its answer was lost. Nothing is
// unknown then.
func TestAMarkThatWasNotConfirmedLeavesNothingUnknown(t *testing.T) {
	inBubble(t, func(w *world) {
		p, h := onceTrip()
		e := w.engine()
		n := 0
		w.store.Intercept(func(r memstore.Request) memstore.Fault {
			if r.Op == memstore.Step {
				if n++; n == 2 {
					return memstore.LostReply
				}
			}
			return memstore.Fault{}
		})
		w.want(serve(w.Context(), e, post("k"), h), "500 failed")
		w.called(p, "charge")
		if !errors.Is(p.failed, core.ErrUnavailable) {
			w.Errorf("Step returned %v; want %v", p.failed, core.ErrUnavailable)
		}
		w.want(serve(w.Context(), e, post("k"), h), "201 charge-1 book-2 mail-3")

		// The same with a step without Once in between.
		n = -10
		w.want(serve(w.Context(), e, post("k2"), func(ctx context.Context, _ endpoint.Attempt) (endpoint.Response, bool) {
			n = 1
			_, err := p.carryOut(ctx, "book")
			_, mailed := p.carryOut(ctx, "mail")
			if err == nil || mailed != nil {
				w.Errorf("the mark of book was lost: %v; and the step after it: %v", err, mailed)
			}
			for _, r := range w.store.Records() {
				if r.Open != "" {
					w.Errorf("the step %s did not begin, and is open", r.Open)
				}
			}
			return endpoint.Response{Status: 503}, true
		}), "503 ")
	})
}

// A step with Once that has its outcome is like any other.
func TestAStepWithOnceThatIsStoredIsKnown(t *testing.T) {
	inBubble(t, func(w *world) {
		p, h := onceTrip()
		w.dies(w.engine(), p, "mail", h)
		w.want(serve(w.Context(), w.engine(), post("k"), h), "201 charge-1 book-2 mail-4")
		w.called(p, "charge book mail mail")
	})
}

// The result of a step with Once is not confirmed: the attempt stores it again, and never runs the step
// again.
func TestTheResultOfAStepWithOnceIsStoredAgain(t *testing.T) {
	inBubble(t, func(w *world) {
		p, _ := onceTrip()
		lost, n := memstore.Unreachable, 0
		w.store.Intercept(func(r memstore.Request) memstore.Fault {
			if r.Op == memstore.Step {
				if n++; n == 2 {
					return lost
				}
			}
			return memstore.Fault{}
		})
		h := func(ctx context.Context, _ endpoint.Attempt) (endpoint.Response, bool) {
			if _, err := p.carryOut(ctx, "book"); !errors.Is(err, core.ErrUnavailable) {
				w.Errorf("a result that is not confirmed: %v; want %v", err, core.ErrUnavailable)
			}
			_, err := idempotency.Step(ctx, "pay", nothing, idempotency.Once())
			if !errors.Is(err, core.ErrConfig) {
				w.Errorf("a second step with Once, while the first is not stored: %v; want %v", err, core.ErrConfig)
			}
			result, err := p.carryOut(ctx, "book")
			if err != nil || !strings.HasPrefix(result, "book-") {
				w.Errorf("the step once more: %q, %v; want its result", result, err)
			}
			return endpoint.Response{Status: 503}, true
		}
		w.want(serve(w.Context(), w.engine(), post("k"), h), "503 ")
		w.want(serve(w.Context(), w.engine(), post("k"), p.handler("book")), "201 book-1")
		w.called(p, "book")
	})
}

// Without a second try the outcome is unknown, though the process lives.
func TestAResultOfAStepWithOnceThatIsNotStoredIsUnknown(t *testing.T) {
	inBubble(t, func(w *world) {
		p, h := onceTrip()
		n := 0
		w.store.Intercept(func(r memstore.Request) memstore.Fault {
			if r.Op == memstore.Step {
				if n++; n == 3 {
					return memstore.Unreachable
				}
			}
			return memstore.Fault{}
		})
		w.want(serve(w.Context(), w.engine(), post("k"), h), "ran, then idempotency-outcome-unknown")
		time.Sleep(31 * time.Second)
		w.want(serve(w.Context(), w.engine(), post("k"), h), "idempotency-outcome-unknown")
		w.called(p, "charge book")
	})
}

func nothing(context.Context) (int, error) { return 0, nil }
