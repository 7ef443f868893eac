// Package explore tests services under faults: a process dies, stands still, is cut off from its store or loses an
// answer, before and after each request to the store and each call of a handler. It finds the place where a crash makes a payment happen
// twice, or lets an answer promise what never happened. It needs no server, and fake time: 150 runs take less than a second.
//
//	func TestThePaymentSurvivesCrashes(t *testing.T) {
//		explore.Run(t, explore.Service{
//			Handler: func(p *explore.Process) http.Handler {
//				return httplock.Idempotent(p.Engine())(payments(&http.Client{Transport: p}))
//			},
//		})
//	}
//
// The function Handler makes one process, and is called for each process of each run. The process p has everything that crosses its border: [Process.Engine]
// and [Process.Locker] are on a store in memory that all processes share, and p itself is the [http.RoundTripper] to
// all services outside. Here payments marks the effect too late:
//
//	func payments(bank *http.Client) http.HandlerFunc {
//		return func(w http.ResponseWriter, r *http.Request) {
//			charge, _ := http.NewRequestWithContext(r.Context(), "POST", "http://bank/charge", nil)
//			res, err := bank.Do(charge)
//			if err == nil {
//				err = errors.Join(res.Body.Close(), idempotency.MarkEffect(r.Context()))
//			}
//			if err != nil {
//				http.Error(w, "not now", http.StatusServiceUnavailable)
//				return
//			}
//			w.WriteHeader(http.StatusCreated)
//		}
//	}
//
// The test fails with the place, the broken invariant, a path that repeats the run ([Path]), and a trace:
//
//	explore: process A died after POST /charge of bank and before MarkEffect: POST /charge of bank: twice for request 1; without faults once
//		repeat it with explore.Path("alone: A dies after POST /charge of bank")
//
// # Places and runs
//
// Two processes serve the requests. Clients send each request until it is answered, with one key and as httplock.Transport does: again
// after a lost answer, after 409 in flight, 423, 429 and 5xx, to another process or to the successor of the dead one. A broker delivers each message at
// least once ([Service.Consumer], [Process.Send]).
//
// The first runs have no faults. Their places are before and after each request to the store, before and after each call to the outside ([Process.RoundTrip],
// [Around], [Effect], [Process.Send], [Tx.Commit]), each [Point], each answer to a client, and each message. Then follow, in this order:
//
//   - each single fault at each place, with one request after the other ("alone"): the process dies; the request or its answer is lost;
//     the process stands still for longer than the leases, and goes on; it is cut off from the store for as long; a message comes twice, or late.
//   - the same, with all requests at the same time, each from two clients ("together"), and with short pauses of the processes.
//   - pairs of faults, and then up to four faults, drawn from a [Seed], as many as the [Budget] has. The sequence of a failing run is shortened.
//
// One goroutine goes on at a time, from place to place. So the places and their order are the same in each run of the same code.
//
// # Invariants
//
// All runs are compared with the run without faults:
//
//   - no effect happens more often for a request or a message,
//   - each request gets a final answer: the status of the run without faults, or an unknown outcome ([Answer.Unknown]),
//   - all answers of success to one request are equal,
//   - an answer of success has all its effects and rows ([Tx]); after an unknown outcome they may be missing,
//   - each message is consumed, or put aside: once.Permanent says so, or its outcome is unknown.
//
// [Service.Invariant] adds more.
//
// # Rules for the service
//
// Everything runs in a bubble of testing/synctest. Make processes without a network; end the goroutines of a process in [Process.Cleanup]; and hold
// no [sync.Mutex] during a call to the store or the outside. Go cannot end goroutines: the goroutine of a dead process
// stops at its next place, and never goes on before the run has been judged. A real database takes part by [Process.Connector].
package explore
