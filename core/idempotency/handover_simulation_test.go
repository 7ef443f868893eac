package idempotency_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/interlock-go/interlock/core/idempotency"
	"github.com/interlock-go/interlock/core/idempotency/endpoint"
)

// Clients send each payment again and again, and its handler hands it over. The message with the
// ticket is delivered one to three times, and again after each error that passes, to workers
// that are slow, fail, and are cut off for longer than their leases; handlers fail before and
// after they have sent the message. No payment takes effect twice, all final answers of one
// payment are the same, and a payment that a worker has finished stays finished. In fake time, with
// a seed to repeat it by.
func TestNoPaymentThatIsHandedOverTakesEffectTwiceWhateverHappens(t *testing.T) {
	var seen handedOver
	for seed := range seeds {
		for name, opts := range map[string][]idempotency.Option{"marked": nil, "strict": {idempotency.Strict()}} {
			seen.add(simulateHandOver(t, uint64(seed), name == "marked", opts...)) //nolint:gosec // a small number
			if t.Failed() {
				t.Fatalf("%s, seed %d", name, seed)
			}
		}
	}
	t.Logf("%+v", seen)
	if seen.finished == 0 || seen.interim == 0 || seen.final == 0 || seen.again == 0 || seen.taken == 0 || seen.ranOut == 0 || seen.unknown == 0 {
		t.Errorf("the simulation proves little: %+v", seen)
	}
}

// handedOver counts what a simulation has met.
type handedOver struct {
	finished       int // jobs that have answered
	interim, final int // answers of retries
	again          int // jobs after an attempt that fell silent
	taken, ranOut  int // tickets that did not give the claim
	unknown        int // outcomes
}

func (h *handedOver) add(o handedOver) {
	h.finished, h.interim, h.final, h.again = h.finished+o.finished, h.interim+o.interim, h.final+o.final, h.again+o.again
	h.taken, h.ranOut, h.unknown = h.taken+o.taken, h.ranOut+o.ranOut, h.unknown+o.unknown
}

func simulateHandOver(t *testing.T, seed uint64, mark bool, opts ...idempotency.Option) (seen handedOver) {
	inBubble(t, func(w *world) {
		s := newSimulation(w, seed, 3, opts)
		deliver := func(i int, ticket idempotency.Ticket) {
			for range 6 {
				s.pause(5 * time.Second)
				answer := ""
				err := s.engines[s.draw(3)].TakeOver(w.Context(), ticket, func(ctx context.Context) (endpoint.Response, error) {
					if idempotency.Generation(ctx) > 1 {
						s.count(&seen.again)
					}
					s.pause(8 * time.Second)
					if s.draw(5) == 0 {
						return endpoint.Response{}, errors.New("the worker fails")
					}
					if mark {
						if err := idempotency.MarkEffect(ctx); err != nil {
							return endpoint.Response{}, err
						}
					} else if ctx.Err() != nil {
						return endpoint.Response{}, context.Cause(ctx)
					}
					answer = fmt.Sprint("201 effect ", s.count(&s.effects[i]))
					s.pause(8 * time.Second)
					return endpoint.Response{Status: 201, Body: []byte(answer[4:])}, nil
				})
				switch {
				case err == nil:
					s.count(&seen.finished)
					s.note(i, answer)
				case errors.Is(err, idempotency.ErrTicketTaken):
					s.count(&seen.taken)
					continue
				case errors.Is(err, idempotency.ErrTicketRanOut):
					s.count(&seen.ranOut)
				case errors.Is(err, idempotency.ErrOutcomeUnknown):
					s.count(&seen.unknown)
				case errors.Is(err, idempotency.ErrTicketFinished):
				default:
					continue
				}
				if s.draw(3) > 0 {
					return
				}
			}
		}
		h := func(i int) handler {
			return func(ctx context.Context, _ endpoint.Attempt) (endpoint.Response, bool) {
				s.pause(4 * time.Second)
				ticket, err := idempotency.HandOver(ctx, time.Duration(1+s.draw(8000))*time.Millisecond)
				if err != nil {
					return endpoint.Response{Status: 503}, true
				}
				s.pause(4 * time.Second)
				if s.draw(5) > 0 {
					for range 1 + s.draw(3) {
						s.jobs.Go(func() { deliver(i, ticket) })
					}
				}
				s.pause(4 * time.Second)
				status := 202
				if s.draw(5) == 0 {
					status = 500
				}
				return endpoint.Response{Status: status, Body: []byte("accepted")}, s.draw(5) > 0
			}
		}
		send := func(i int) string {
			got := serve(w.Context(), s.engines[s.draw(3)], post(fmt.Sprint("k", i)), h(i))
			if strings.HasPrefix(got, "interim 202") {
				s.count(&seen.interim)
			}
			if answer, replayed := strings.CutPrefix(got, "replay "); replayed {
				s.count(&seen.final)
				s.note(i, answer)
			}
			return got
		}
		s.run(func(i int) { send(i) }, func(i int) {
			for answer := range s.told[i] {
				if last := send(i); last != "replay "+answer {
					t.Errorf("payment %d was answered with %q, and now with %q", i, answer, last)
				}
			}
		})
	})
	return seen
}
