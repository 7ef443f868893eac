package quorum

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/interlock-go/interlock/core/driver"
	"github.com/interlock-go/interlock/core/internal/rediswire"
)

// A node that was stopped for long finds old requests when it runs again. Their owners
// have long ended, and perhaps their processes.
func TestANodeThatWasStoppedDoesNothingOfThePast(t *testing.T) {
	for name, ended := range map[string]bool{"their process lives": false, "their process has ended": true} {
		t.Run(name, func(t *testing.T) {
			bubble(t, 3, func(t *testing.T, nodes []*fakeNode) {
				const keys = 12
				s, other := storeOn(t, nodes), storeOn(t, nodes)
				request := func(owner string, i int) driver.AcquireRequest {
					req := ask(owner)
					req.Key = fmt.Sprint("k", i)
					return req
				}
				nodes[2].sleep()
				for i := range keys {
					rep, err := s.Acquire(t.Context(), request("a", i))
					if err != nil || !rep.Granted {
						t.Fatalf("%+v, %v", rep, err)
					}
				}
				if ended {
					s.leaving.Store(true) // it sends nothing any more
				}
				time.Sleep(lease + time.Second)
				nodes[2].wake()
				synctest.Wait()
				for i := range keys {
					if owner := nodes[2].holder(fmt.Sprint("k", i)); owner != "" {
						t.Errorf("k%d is held by %q, whose lease has ended", i, owner)
					}
				}
				nodes[1].set(func(f *fakeNode) { f.down = true })
				for i := range keys {
					rep, err := other.Acquire(t.Context(), request("b", i))
					if err != nil || !rep.Granted {
						t.Errorf("with the node and one other: %+v, %v", rep, err)
					}
				}
				s.leaving.Store(false) // it is closed as others are
			})
		})
	}
}

// The length of a node's silence says nothing about its behaviour afterwards.
func TestADebtIsOwedUntilTheNodeHasAnswered(t *testing.T) {
	bubble(t, 3, func(t *testing.T, nodes []*fakeNode) {
		s := storeOn(t, nodes)
		nodes[2].set(func(f *fakeNode) { f.down = true })
		s.nodes[2].pause = mostDebtPause // so that it is asked at the instants of the counts
		for i := range 2 * debtBatch {
			owner := fmt.Sprint("a", i)
			s.nodes[2].owe(debt{Withdrawal: rediswire.Withdrawal{Key: owner, Owner: owner, TTL: lease, Limit: 1}})
		}
		time.Sleep(3 * lease)
		synctest.Wait() // else the request of this instant counts, too
		before := nodes[2].count("withdraw")
		time.Sleep(lease)
		synctest.Wait()
		if n := nodes[2].count("withdraw") - before; n != 10 {
			t.Errorf("a node that does not answer was asked %d times in %v; want once a second", n, lease)
		}
		for i := range 2 * debtBatch {
			owner := fmt.Sprint("a", i)
			nodes[2].hold(owner, owner, 1, lease)
		}
		nodes[2].set(func(f *fakeNode) { f.down = false })
		time.Sleep(2 * time.Second)
		for i := range 2 * debtBatch {
			owner := fmt.Sprint("a", i)
			if nodes[2].holder(owner) != "" {
				t.Errorf("%s is held still", owner)
			}
		}
		s.nodes[2].mu.Lock()
		defer s.nodes[2].mu.Unlock()
		if n := len(s.nodes[2].debts); n != 0 {
			t.Errorf("%d debts are left of a node that has answered", n)
		}
	})
}

// A withdrawal that comes before the proposal which it withdraws is repeated when that can
// come no more.
func TestAWithdrawalIsRepeatedWhenTheProposalHasEnded(t *testing.T) {
	bubble(t, 3, func(t *testing.T, nodes []*fakeNode) {
		s := storeOn(t, nodes)
		lapses := time.Now().Add(200 * time.Millisecond)
		s.nodes[2].owe(debt{Withdrawal: rediswire.Withdrawal{Key: "k", Owner: "a", TTL: lease, Limit: 1}, lapses: lapses})
		time.Sleep(100 * time.Millisecond) // it was withdrawn in vain
		nodes[2].hold("k", "a", 1, lease)
		time.Sleep(time.Until(lapses) + 10*time.Millisecond)
		if owner := nodes[2].holder("k"); owner != "" {
			t.Errorf("it is held by %q", owner)
		}
		if n := nodes[2].count("withdraw"); n != 2 {
			t.Errorf("it was withdrawn %d times, want 2", n)
		}
	})
}

// A clock that was set makes proposals end too early or too late, until an answer shows
// the new time, however long the answer was on its way.
func TestAClockThatIsSetCostsARound(t *testing.T) {
	for name, step := range map[string]time.Duration{"ahead": time.Hour, "back": -time.Hour} {
		t.Run(name, func(t *testing.T) {
			bubble(t, 3, func(t *testing.T, nodes []*fakeNode) {
				s := storeOn(t, nodes)
				for _, f := range nodes {
					f.latency = 2 * plausible // each way: such an answer does not replace the earlier note
					f.ahead = step
				}
				for n := range 2 {
					owner := fmt.Sprint("a", n)
					rep := acquire(t, s, owner)
					if !rep.Granted {
						t.Fatalf("got %+v", rep)
					}
					free(t, s, owner, rep.Token)
					time.Sleep(time.Second)
				}
				if n := nodes[0].count("propose"); n > 3 {
					t.Errorf("two locks took %d proposals", n)
				}
				for i, n := range s.nodes {
					got := n.offset.Load() + time.Since(s.epoch).Microseconds()
					if off := time.Duration(got-time.Now().Add(step).UnixMicro()) * time.Microsecond; off.Abs() > time.Second {
						t.Errorf("the clock of node %d is believed to be %v off", i, off)
					}
				}
			})
		})
	}
}
