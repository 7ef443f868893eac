package idempotency_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
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
		const payments = 12
		r := rand.New(rand.NewPCG(seed, 3)) //nolint:gosec // to be repeated, not to be secret
		var mu sync.Mutex                   // of all below
		draw := func(n int) int {
			mu.Lock()
			defer mu.Unlock()
			return r.IntN(n)
		}
		pause := func(longest time.Duration) {
			if draw(2) == 0 {
				<-time.After(time.Duration(draw(int(longest.Milliseconds()))) * time.Millisecond)
			}
		}
		opts = append([]idempotency.Option{idempotency.Lease(3 * time.Second), idempotency.WaitReplay(time.Second)}, opts...)
		engines := []*idempotency.Engine{w.engine(opts...), w.engine(opts...), w.engine(opts...)}
		w.store.Intercept(trouble(rand.New(rand.NewPCG(seed, 4)))) //nolint:gosec // likewise

		var effects [payments]int
		var told [payments]map[string]bool
		note := func(i int, answer string) {
			mu.Lock()
			defer mu.Unlock()
			if told[i] == nil {
				told[i] = map[string]bool{}
			}
			told[i][answer] = true
		}
		count := func(n *int) {
			mu.Lock()
			defer mu.Unlock()
			*n++
		}
		var wg sync.WaitGroup
		deliver := func(i int, ticket idempotency.Ticket) {
			for range 6 {
				pause(5 * time.Second)
				answer := ""
				err := engines[draw(3)].TakeOver(w.Context(), ticket, func(ctx context.Context) (endpoint.Response, error) {
					if idempotency.Generation(ctx) > 1 {
						count(&seen.again)
					}
					pause(8 * time.Second)
					if draw(5) == 0 {
						return endpoint.Response{}, errors.New("the worker fails")
					}
					if mark {
						if err := idempotency.MarkEffect(ctx); err != nil {
							return endpoint.Response{}, err
						}
					} else if ctx.Err() != nil {
						return endpoint.Response{}, context.Cause(ctx)
					}
					count(&effects[i])
					answer = fmt.Sprint("201 effect ", effects[i])
					pause(8 * time.Second)
					return endpoint.Response{Status: 201, Body: []byte(answer[4:])}, nil
				})
				switch {
				case err == nil:
					count(&seen.finished)
					note(i, answer)
				case errors.Is(err, idempotency.ErrTicketTaken):
					count(&seen.taken)
					continue
				case errors.Is(err, idempotency.ErrTicketRanOut):
					count(&seen.ranOut)
				case errors.Is(err, idempotency.ErrOutcomeUnknown):
					count(&seen.unknown)
				case errors.Is(err, idempotency.ErrTicketFinished):
				default:
					continue
				}
				if draw(3) > 0 {
					return
				}
			}
		}
		h := func(i int) handler {
			return func(ctx context.Context, _ endpoint.Attempt) (endpoint.Response, bool) {
				pause(4 * time.Second)
				ticket, err := idempotency.HandOver(ctx, time.Duration(1+draw(8000))*time.Millisecond)
				if err != nil {
					return endpoint.Response{Status: 503}, true
				}
				pause(4 * time.Second)
				if draw(5) > 0 {
					for range 1 + draw(3) {
						wg.Go(func() { deliver(i, ticket) })
					}
				}
				pause(4 * time.Second)
				status := 202
				if draw(5) == 0 {
					status = 500
				}
				return endpoint.Response{Status: status, Body: []byte("accepted")}, draw(5) > 0
			}
		}
		send := func(i int) string {
			got := serve(w.Context(), engines[draw(3)], post(fmt.Sprint("k", i)), h(i))
			if strings.HasPrefix(got, "interim 202") {
				count(&seen.interim)
			}
			if answer, replayed := strings.CutPrefix(got, "replay "); replayed {
				count(&seen.final)
				note(i, answer)
			}
			return got
		}
		for i := range payments {
			for range 3 {
				wg.Go(func() {
					for range 8 {
						send(i)
						<-time.After(time.Duration(draw(3000)) * time.Millisecond)
					}
				})
			}
		}
		wg.Wait()
		w.store.Intercept(nil)
		<-time.After(time.Minute) // the outstanding work is done
		synctest.Wait()
		for i := range payments {
			if effects[i] > 1 {
				t.Errorf("payment %d took effect %d times", i, effects[i])
			}
			if len(told[i]) > 1 {
				t.Errorf("payment %d has several final answers: %v", i, told[i])
			}
			for answer := range told[i] {
				if last := send(i); last != "replay "+answer {
					t.Errorf("payment %d was answered with %q, and now with %q", i, answer, last)
				}
			}
		}
		for _, e := range engines {
			if n := e.Pending(); n > 0 {
				t.Errorf("%d pending", n)
			}
		}
	})
	return seen
}
