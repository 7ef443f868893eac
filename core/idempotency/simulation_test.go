package idempotency_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/idempotency"
	"github.com/interlock-go/interlock/core/idempotency/endpoint"
	"github.com/interlock-go/interlock/core/memstore"
	"github.com/interlock-go/interlock/core/reason"
)

// trouble is a store that loses requests and replies and delays both, and cuts
// processes off for longer than a lease.
func trouble(r *rand.Rand) func(memstore.Request) memstore.Fault {
	var mu sync.Mutex
	var down time.Time
	return func(memstore.Request) memstore.Fault {
		mu.Lock()
		defer mu.Unlock()
		now := time.Now()
		if now.Before(down) {
			return memstore.Unreachable
		}
		slow := func() time.Duration { return time.Duration(r.IntN(1500)) * time.Millisecond }
		switch r.IntN(40) {
		case 0:
			down = now.Add(time.Duration(r.IntN(6000)) * time.Millisecond)
			return memstore.Unreachable
		case 1:
			return memstore.LostRequest
		case 2:
			return memstore.LostReply
		case 3:
			return memstore.Fault{Before: slow(), After: slow(), Err: core.ErrUnavailable, Executed: true}
		case 4, 5, 6, 7, 8:
			return memstore.Fault{Before: slow(), After: slow()}
		}
		return memstore.Fault{}
	}
}

// Clients send each payment again and again to three processes, until it is
// answered with success; requests and replies get lost, processes are cut off
// before and after the effect, and handlers fail. No payment
// takes effect twice, all successes of one payment are the same, and a payment answered
// with success stays successful. In fake time, with a seed to repeat it by.
func TestNoPaymentTakesEffectTwiceWhateverHappens(t *testing.T) {
	var successes, replays, takeovers, unknown int
	for seed := range seeds {
		for name, opts := range map[string][]idempotency.Option{"marked": nil, "strict": {idempotency.Strict()}} {
			s := simulate(t, uint64(seed), name == "marked", opts...) //nolint:gosec // a small number
			if t.Failed() {
				t.Fatalf("%s, seed %d", name, seed)
			}
			successes, replays, takeovers, unknown = successes+s[0], replays+s[1], takeovers+s[2], unknown+s[3]
		}
	}
	t.Logf("%d successes, %d of them replayed, %d take-overs, %d times the outcome was unknown", successes, replays, takeovers, unknown)
	if replays == 0 || takeovers == 0 || unknown == 0 {
		t.Error("the simulation proves little")
	}
}

func simulate(t *testing.T, seed uint64, mark bool, opts ...idempotency.Option) (stats [4]int) {
	inBubble(t, func(w *world) {
		const payments = 12
		r := rand.New(rand.NewPCG(seed, 1)) //nolint:gosec // to be repeated, not to be secret
		var mu sync.Mutex                   // of all below
		draw := func(n int) int {
			mu.Lock()
			defer mu.Unlock()
			return r.IntN(n)
		}
		opts = append([]idempotency.Option{idempotency.Lease(3 * time.Second), idempotency.WaitReplay(time.Second)}, opts...)
		engines := []*idempotency.Engine{w.engine(opts...), w.engine(opts...), w.engine(opts...)}
		w.store.Intercept(trouble(rand.New(rand.NewPCG(seed, 2)))) //nolint:gosec // likewise

		var effects [payments]int
		var told [payments]map[string]bool
		h := func(i int) handler {
			return func(ctx context.Context, _ endpoint.Attempt) (endpoint.Response, bool) {
				if idempotency.Generation(ctx) > 1 {
					mu.Lock()
					stats[2]++
					mu.Unlock()
				}
				pause := func() {
					if draw(2) == 0 {
						<-time.After(time.Duration(draw(8000)) * time.Millisecond)
					}
				}
				pause()
				if mark {
					if err := idempotency.MarkEffect(ctx); err != nil {
						return endpoint.Response{Status: 503}, true
					}
				}
				mu.Lock()
				effects[i]++
				n := effects[i]
				mu.Unlock()
				pause()
				status := 201
				if draw(6) == 0 {
					status = 500
				}
				return endpoint.Response{Status: status, Body: fmt.Appendf(nil, "effect %d", n)}, draw(4) > 0
			}
		}
		send := func(i int) string {
			got := serve(w.Context(), engines[draw(3)], post(fmt.Sprint("k", i)), h(i))
			mu.Lock()
			defer mu.Unlock()
			answer, replayed := strings.CutPrefix(got, "replay ")
			if strings.HasPrefix(answer, "201") {
				stats[0]++
				if replayed {
					stats[1]++
				}
				if told[i] == nil {
					told[i] = map[string]bool{}
				}
				told[i][answer] = true
			}
			if got == string(reason.OutcomeUnknown) {
				stats[3]++
			}
			return got
		}
		var wg sync.WaitGroup
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
				t.Errorf("payment %d has several answers: %v", i, told[i])
			}
			before := len(told[i]) > 0
			if last := send(i); before && !strings.HasPrefix(last, "replay 201") {
				t.Errorf("payment %d was answered with %v, and now with %s", i, told[i], last)
			}
		}
		for _, e := range engines {
			if n := e.Pending(); n > 0 {
				t.Errorf("%d pending", n)
			}
		}
	})
	return stats
}
