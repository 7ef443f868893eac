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

// payments is how many payments a simulation makes.
const payments = 12

// simulation is the part that the simulations have in common: three processes on a store in
// trouble, and clients that send each payment again and again.
type simulation struct {
	*world
	engines []*idempotency.Engine
	jobs    sync.WaitGroup

	mu      sync.Mutex // of all below, and of the counts of a simulation
	r       *rand.Rand
	effects [payments]int
	told    [payments]map[string]bool // the final answers
}

// newSimulation draws from the two streams of a seed from stream on.
func newSimulation(w *world, seed, stream uint64, opts []idempotency.Option) *simulation {
	opts = append([]idempotency.Option{idempotency.Lease(3 * time.Second), idempotency.WaitReplay(time.Second)}, opts...)
	s := &simulation{
		world: w, engines: []*idempotency.Engine{w.engine(opts...), w.engine(opts...), w.engine(opts...)},
		r: rand.New(rand.NewPCG(seed, stream)), //nolint:gosec // to be repeated, not to be secret
	}
	w.store.Intercept(trouble(rand.New(rand.NewPCG(seed, stream+1)))) //nolint:gosec // likewise
	return s
}

func (s *simulation) draw(n int) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.r.IntN(n)
}

func (s *simulation) count(n *int) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	*n++
	return *n
}

// pause takes up to a time, or none.
func (s *simulation) pause(longest time.Duration) {
	if s.draw(2) == 0 {
		<-time.After(time.Duration(s.draw(int(longest.Milliseconds()))) * time.Millisecond)
	}
}

// note notes a final answer to a payment.
func (s *simulation) note(i int, answer string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.told[i] == nil {
		s.told[i] = map[string]bool{}
	}
	s.told[i][answer] = true
}

// run sends all payments until the outstanding work is done. Then it looks at the effects and the
// final answers, and calls again for each payment, which sends it once more.
func (s *simulation) run(send, again func(i int)) {
	for i := range payments {
		for range 3 {
			s.jobs.Go(func() {
				for range 8 {
					send(i)
					<-time.After(time.Duration(s.draw(3000)) * time.Millisecond)
				}
			})
		}
	}
	s.jobs.Wait()
	s.store.Intercept(nil)
	<-time.After(time.Minute) // the outstanding work is done
	synctest.Wait()
	for i := range payments {
		if s.effects[i] > 1 {
			s.Errorf("payment %d took effect %d times; want at most one effect", i, s.effects[i])
		}
		if len(s.told[i]) > 1 {
			s.Errorf("payment %d has several final answers: %v; want the same for all requests", i, s.told[i])
		}
		again(i)
	}
	for _, e := range s.engines {
		if n := e.Pending(); n > 0 {
			s.Errorf("%d requests are pending; want none after a minute", n)
		}
	}
}

func simulate(t *testing.T, seed uint64, mark bool, opts ...idempotency.Option) (stats [4]int) {
	inBubble(t, func(w *world) {
		s := newSimulation(w, seed, 1, opts)
		h := func(i int) handler {
			return func(ctx context.Context, _ endpoint.Attempt) (endpoint.Response, bool) {
				if idempotency.Generation(ctx) > 1 {
					s.count(&stats[2])
				}
				s.pause(8 * time.Second)
				if mark {
					if err := idempotency.MarkEffect(ctx); err != nil {
						return endpoint.Response{Status: 503}, true
					}
				}
				n := s.count(&s.effects[i])
				s.pause(8 * time.Second)
				status := 201
				if s.draw(6) == 0 {
					status = 500
				}
				return endpoint.Response{Status: status, Body: fmt.Appendf(nil, "effect %d", n)}, s.draw(4) > 0
			}
		}
		send := func(i int) string {
			got := serve(w.Context(), s.engines[s.draw(3)], post(fmt.Sprint("k", i)), h(i))
			answer, replayed := strings.CutPrefix(got, "replay ")
			if strings.HasPrefix(answer, "201") {
				s.count(&stats[0])
				if replayed {
					s.count(&stats[1])
				}
				s.note(i, answer)
			}
			if got == string(reason.OutcomeUnknown) {
				s.count(&stats[3])
			}
			return got
		}
		s.run(func(i int) { send(i) }, func(i int) {
			before := len(s.told[i]) > 0
			if last := send(i); before && !strings.HasPrefix(last, "replay 201") {
				t.Errorf("payment %d was answered with %v, and now with %s", i, s.told[i], last)
			}
		})
	})
	return stats
}
