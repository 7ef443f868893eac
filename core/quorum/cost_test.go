package quorum

import (
	"testing"
	"time"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/driver"
	"github.com/interlock-go/interlock/core/internal/rediswire"
)

// requests is how many proposals and withdrawals came to the nodes.
func requests(nodes []*fakeNode) (n int) {
	for _, f := range nodes {
		n += f.count("propose") + f.count("withdraw")
	}
	return n
}

// A release that comes before the last votes of its lock keeps them from being given. So it
// does not have to be repeated for each vote with a later answer.
func TestALockAndItsReleaseCostTwoRequestsANode(t *testing.T) {
	for name, held := range map[string]time.Duration{
		"released before the late votes": 0,
		"released among the late votes":  5 * time.Millisecond,
		"released behind them":           20 * time.Millisecond,
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, 5, func(t *testing.T, nodes []*fakeNode) {
				s := storeOn(t, nodes)
				for i, f := range nodes {
					f.latency = time.Duration(1+2*i) * time.Millisecond
				}
				rep := acquire(t, s, "a")
				time.Sleep(held)
				free(t, s, "a", rep.Token)
				time.Sleep(50 * time.Millisecond)
				if n := requests(nodes); n != 10 {
					t.Errorf("%d requests, want 10", n)
				}
				wantFree(t, nodes, 0)
			})
		})
	}
}

// The same for a proposal that comes to its node after the release.
func TestAProposalThatItsReleaseOvertakesTakesNothing(t *testing.T) {
	bubble(t, 5, func(t *testing.T, nodes []*fakeNode) {
		s := storeOn(t, nodes)
		var late rediswire.Vote
		s.nodes[4].server = slowNode{nodes[4], func(p rediswire.Proposal, done func(rediswire.Vote, error)) {
			time.Sleep(30 * time.Millisecond) // within its time
			var v rediswire.Vote
			nodes[4].set(func(f *fakeNode) {
				v = f.vote(p)
				late = v
			})
			done(v, nil)
		}}
		rep := acquire(t, s, "a")
		free(t, s, "a", 0)
		time.Sleep(100 * time.Millisecond)
		nodes[4].set(func(*fakeNode) {
			if late.Clock == 0 || late.Granted || late.Token < rep.Token {
				t.Errorf("the late proposal is answered with %+v; want it too low", late)
			}
		})
		if n := nodes[4].count("withdraw"); n != 1 {
			t.Errorf("%d withdrawals, want 1", n)
		}
		wantFree(t, nodes, 0)
	})
}

// slowRelease is a node that the withdrawals of a process reach later than the nodes before.
type slowRelease struct {
	*fakeNode
	by time.Duration
}

func (n slowRelease) Withdraw(w rediswire.Withdrawal, done func(driver.Waiters, error)) {
	go func() {
		time.Sleep(n.by)
		n.fakeNode.Withdraw(w, done)
	}()
}

// A waiter does not ask for a lock while its release has not reached a majority: it would
// find the lock held, and have to ask again. So each turn costs a waiter one request a node
// to be listed, one to get the lock and one to give it up.
func TestATurnCostsThreeRequestsANode(t *testing.T) {
	bubble(t, 5, func(t *testing.T, nodes []*fakeNode) {
		holder := storeOn(t, nodes)
		for i, n := range holder.nodes {
			n.server = slowRelease{nodes[i], time.Duration(i) * 200 * time.Microsecond}
		}
		rep := acquire(t, holder, "x")
		waiter, err := core.New(storeOn(t, nodes), core.Unlisted())
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Millisecond)
		before := requests(nodes)
		done := make(chan error)
		go func() {
			lease, err := waiter.Lock(t.Context(), "k")
			if err == nil {
				time.Sleep(10 * time.Millisecond)
				err = lease.Release(t.Context())
			}
			done <- err
		}()
		time.Sleep(50 * time.Millisecond)
		free(t, holder, "x", rep.Token)
		if err := <-done; err != nil {
			t.Fatal(err)
		}
		time.Sleep(50 * time.Millisecond)
		if n := requests(nodes) - before - 5; n != 15 {
			t.Errorf("%d requests besides the holder's release, want 15", n)
		}
		if err := waiter.Close(t.Context()); err != nil {
			t.Error(err)
		}
	})
}
