package idempotency_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/idempotency"
	"github.com/interlock-go/interlock/core/idempotency/endpoint"
	"github.com/interlock-go/interlock/core/memstore"
	"github.com/interlock-go/interlock/internal/logtest"
)

// TestTheRequestsOfSteps counts the requests to the store.
func TestTheRequestsOfSteps(t *testing.T) {
	for _, c := range []struct {
		what  string
		names []string
		once  bool
		want  int // beyond claim and commit
	}{
		{"no step", nil, false, 0},
		{"one step", []string{"charge"}, false, 1},
		{"three steps", []string{"charge", "book", "mail"}, false, 3},
		{"three steps, one with Once", []string{"charge", "book", "mail"}, true, 4},
	} {
		inBubble(t, func(w *world) {
			p, _ := onceTrip()
			if !c.once {
				delete(p.opts, "book")
			}
			w.want(serve(w.Context(), w.engine(), post("k"), p.handler(c.names...))[:4], "201 ")
			if n := w.asked() + w.store.Requests(memstore.Step); n != 2+c.want {
				w.Errorf("%s: %d requests, want %d", c.what, n, 2+c.want)
			}
		})
	}
	inBubble(t, func(w *world) {
		p, _ := onceTrip()
		p.at["mail"] = func(context.Context) (string, error) { return "", errors.New("no mail") }
		w.want(serve(w.Context(), w.engine(), post("k"), p.handler("charge", "book", "mail")), "500 failed")
		before := w.asked() + w.store.Requests(memstore.Step)
		delete(p.at, "mail")
		w.want(serve(w.Context(), w.engine(), post("k"), p.handler("charge", "book", "mail")), "201 charge-1 book-2 mail-4")
		if n := w.asked() + w.store.Requests(memstore.Step) - before; n != 3 {
			w.Errorf("a handler that goes on after two steps of three: %d requests, want claim, step and commit", n)
		}
	})
}

// A result that is not confirmed may be stored or not. In both cases no step is lost, and none is
// stored that did not happen.
func TestTheAnswerToAStepIsLost(t *testing.T) {
	for what, fault := range map[string]memstore.Fault{
		"stored": memstore.LostReply, "not stored": memstore.Unreachable, "lost on the way": memstore.LostRequest,
	} {
		for _, repeats := range []bool{false, true} {
			t.Run(fmt.Sprint(what, repeats), func(t *testing.T) {
				inBubble(t, func(w *world) {
					p, e, n := newTrip(), w.engine(), 0
					w.store.Intercept(func(r memstore.Request) memstore.Fault {
						if r.Op == memstore.Step {
							if n++; n == 2 {
								return fault
							}
						}
						return memstore.Fault{}
					})
					w.want(serve(w.Context(), e, post("k"), func(ctx context.Context, _ endpoint.Attempt) (endpoint.Response, bool) {
						_, err := p.carryOut(ctx, "charge", "book")
						if !errors.Is(err, core.ErrUnavailable) {
							w.Errorf("Step returned %v; want %v", err, core.ErrUnavailable)
						}
						if repeats {
							result, err := p.carryOut(ctx, "book")
							w.want(result, "book-2")
							if err != nil {
								w.Errorf("the step once more: %v", err)
							}
						}
						return endpoint.Response{Status: 500, Body: []byte("failed")}, true
					}), "500 failed")
					if what == "stored" || repeats {
						w.want(serve(w.Context(), e, post("k"), p.handler("charge", "book", "mail")), "201 charge-1 book-2 mail-3")
					} else {
						w.want(serve(w.Context(), e, post("k"), p.handler("charge", "book", "mail")), "201 charge-1 book-3 mail-4")
					}
				})
			})
		}
	}
}

// If the request of a step was lost, the request of a later step carries its entry along.
func TestALaterStepStoresTheEarlierOne(t *testing.T) {
	inBubble(t, func(w *world) {
		p, e, n := newTrip(), w.engine(), 0
		w.store.Intercept(func(r memstore.Request) memstore.Fault {
			if r.Op == memstore.Step {
				if n++; n == 1 {
					return memstore.Unreachable
				}
			}
			return memstore.Fault{}
		})
		serve(w.Context(), e, post("k"), func(ctx context.Context, _ endpoint.Attempt) (endpoint.Response, bool) {
			_, _ = p.carryOut(ctx, "charge")
			_, _ = p.carryOut(ctx, "book")
			return endpoint.Response{Status: 503}, true
		})
		w.want(serve(w.Context(), e, post("k"), p.handler("charge", "book")), "201 charge-1 book-2")
	})
}

// An attempt that has lost its claim stores nothing: the attempt that took over has the record.
func TestAnAttemptThatIsOvertakenStoresNoStep(t *testing.T) {
	inBubble(t, func(w *world) {
		p, e := newTrip(), w.engine()
		p.at["charge"] = func(context.Context) (string, error) { w.store.TakeClaims(time.Minute); return "late", nil }
		var after error
		serve(w.Context(), e, post("k"), func(ctx context.Context, _ endpoint.Attempt) (endpoint.Response, bool) {
			_, err := p.carryOut(ctx, "charge")
			if !errors.Is(err, core.ErrLost) {
				w.Errorf("Step returned %v; want %v", err, core.ErrLost)
			}
			_, after = p.carryOut(ctx, "book")
			return endpoint.Response{Status: 500}, true
		})
		if !errors.Is(after, core.ErrLost) {
			w.Errorf("the next step: %v; want %v", after, core.ErrLost)
		}
		w.called(p, "charge")
		if r := w.record(); r.Step != "" {
			w.Errorf("the record of another attempt has the step %s", r.Step)
		}
	})
}

func TestAResultThatIsTooLongIsNotLost(t *testing.T) {
	inBubble(t, func(w *world) {
		logged := logtest.Default(w.T)
		e, ran := w.engine(idempotency.MaxStepBytes(500)), 0
		h := func(ctx context.Context, _ endpoint.Attempt) (endpoint.Response, bool) {
			long, err := idempotency.Step(ctx, "report", func(context.Context) (string, error) { ran++; return strings.Repeat("x", 600), nil })
			if !errors.Is(err, idempotency.ErrStepNotStored) || len(long) != 600 && ran == 1 {
				w.Errorf("a result that is too long: %d bytes, %v; want all of it with %v", len(long), err, idempotency.ErrStepNotStored)
			}
			if _, err := idempotency.Step(ctx, "small", func(context.Context) (int, error) { return 7, nil }); err != nil {
				w.Errorf("a small step after it: %v", err)
			}
			return endpoint.Response{Status: 503, Body: fmt.Append(nil, len(long))}, true
		}
		w.want(serve(w.Context(), e, post("k"), h), "503 600")
		if ran++; !strings.Contains(logged.String(), "MaxStepBytes") || !strings.Contains(logged.String(), "report") {
			w.Errorf("the log says %q", logged.String())
		}
		w.want(serve(w.Context(), e, post("k"), h), "503 0")
		if ran != 2 {
			w.Errorf("the step ran again")
		}
		// A result that cannot be encoded likewise.
		bad := func(ctx context.Context, _ endpoint.Attempt) (endpoint.Response, bool) {
			c, err := idempotency.Step(ctx, "channel", func(context.Context) (chan int, error) { ran++; return make(chan int), nil })
			if !errors.Is(err, idempotency.ErrStepNotStored) || (c != nil) != (ran == 3) {
				w.Errorf("a result that cannot be encoded: %v", err)
			}
			return endpoint.Response{Status: 503}, true
		}
		serve(w.Context(), e, post("k2"), bad)
		ran++
		serve(w.Context(), e, post("k2"), bad)
	})
}

// The room of a record is known before the effect: no step begins that could not even be noted.
func TestARecordHasRoomForABoundedNumberOfSteps(t *testing.T) {
	inBubble(t, func(w *world) {
		e, ran := w.engine(idempotency.MaxStepBytes(1000)), 0
		var last error
		serve(w.Context(), e, post("k"), func(ctx context.Context, _ endpoint.Attempt) (endpoint.Response, bool) {
			for i := range 1000 {
				if _, last = idempotency.Step(ctx, fmt.Sprintf("item-%d", i), func(context.Context) (int, error) { ran++; return i, nil }); last != nil {
					break
				}
			}
			return endpoint.Response{Status: 503}, true
		})
		if !errors.Is(last, core.ErrConfig) || !strings.Contains(last.Error(), "MaxStepBytes") || ran < 20 || ran > 60 {
			w.Errorf("after %d steps: %v; want an error that names MaxStepBytes, and no call of the function", ran, last)
		}
	})
}

// Steps are sealed as answers are.
func TestStepsAreSealed(t *testing.T) {
	inBubble(t, func(w *world) {
		flip := func(b []byte) ([]byte, error) {
			b = bytes.Clone(b)
			for i := range b {
				b[i] ^= 0x55
			}
			return b, nil
		}
		e := w.engine(idempotency.Seal(flip, flip))
		p := newTrip()
		p.at["charge"] = func(context.Context) (string, error) { return "the secret of the card", nil }
		p.at["book"] = func(context.Context) (string, error) {
			return "", idempotency.Final(errors.New("the secret of the hotel"))
		}
		w.want(serve(w.Context(), e, post("k"), p.handler("charge", "book")), "500 failed")
		v, err := w.store.LookRecord(w.Context(), w.record().ID)
		if err != nil || bytes.Contains(v.Log, []byte("secret")) || !bytes.Contains(v.Log, []byte("charge")) {
			w.Errorf("the steps in the store are %q, %v; want the names in plain text, and no result", v.Log, err)
		}
		serve(w.Context(), w.engine(), post("k"), p.handler("charge"))
		if !errors.Is(p.failed, idempotency.ErrDamaged) {
			w.Errorf("an engine without Seal: %v; want %v", p.failed, idempotency.ErrDamaged)
		}
		p.at["charge"] = func(context.Context) (string, error) { return "", errors.New("it runs again") }
		serve(w.Context(), e, post("k"), p.handler("charge", "book"))
		if p.failed.Error() != "the secret of the hotel" {
			w.Errorf("the second attempt met %v; want the final error of the step", p.failed)
		}
		// A result that cannot be sealed is never stored in plain text.
		broken := w.engine(idempotency.Seal(func([]byte) ([]byte, error) { return nil, errors.New("no key") }, flip))
		delete(p.at, "charge")
		serve(w.Context(), broken, post("k2"), p.handler("charge"))
		if !errors.Is(p.failed, idempotency.ErrStepNotStored) {
			w.Errorf("a result that cannot be sealed: %v; want %v", p.failed, idempotency.ErrStepNotStored)
		}
	})
}

// A mark and steps in one handler: the mark counts for the whole request.
func TestAMarkCountsBesideSteps(t *testing.T) {
	inBubble(t, func(w *world) {
		p, e := newTrip(), w.engine()
		w.dies(e, p, "book", func(ctx context.Context, a endpoint.Attempt) (endpoint.Response, bool) {
			_, _ = p.carryOut(ctx, "charge")
			if err := idempotency.MarkEffect(ctx); err != nil {
				w.Error(err)
			}
			return p.handler("book")(ctx, a)
		})
		w.want(serve(w.Context(), w.engine(), post("k"), w.unwanted), "idempotency-outcome-unknown")
	})
}
