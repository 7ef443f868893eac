package quorum

import (
	"testing"
	"time"

	"github.com/interlock-go/interlock/core/driver"
	"github.com/interlock-go/interlock/core/internal/rediswire"
)

// An owner that tries again after a refusal: its old proposal must not replace the vote
// that counts, nor its withdrawal take that away.
func TestALateProposalOfTheSameOwnerTakesNoVoteAway(t *testing.T) {
	for name, clocks := range map[string]struct{ before, after func(n *node) }{
		"whose clock was known late": {
			func(*node) {}, func(n *node) { n.offset.Add(-20_000) },
		},
		"that did not know the clocks": {
			func(n *node) { n.offset.Store(0) }, func(n *node) { n.sawClock(time.Now().UnixMicro(), time.Now(), time.Now()) },
		},
	} {
		t.Run(name, func(t *testing.T) { lateProposal(t, clocks.before, clocks.after) })
	}
}

func lateProposal(t *testing.T, before, after func(n *node)) {
	t.Helper()
	bubble(t, 3, func(t *testing.T, nodes []*fakeNode) {
		s := storeOn(t, nodes)
		for _, n := range s.nodes {
			before(n)
		}
		nodes[0].hold("k", "x", 1, lease)
		nodes[2].hold("k", "x", 1, lease)
		nodes[1].set(func(f *fakeNode) { f.latency = 40 * time.Millisecond })
		if rep := acquire(t, s, "a"); rep.Granted || rep.Ambiguous {
			t.Fatalf("got %+v", rep)
		}
		nodes[0].set(func(f *fakeNode) { delete(f.locks, "k"); delete(f.fences, "k") })
		nodes[1].set(func(f *fakeNode) { f.latency = 100 * time.Microsecond }) // the first proposal still takes its time
		for _, n := range s.nodes {
			after(n)
		}
		rep := acquire(t, s, "a")
		if !rep.Granted {
			t.Fatalf("got %+v", rep)
		}
		time.Sleep(time.Second)
		for i, f := range nodes[:2] {
			if owner := f.holder("k"); owner != "a" {
				t.Errorf("node %d has voted for a, and is held by %q", i, owner)
			}
		}
		free(t, s, "a", rep.Token)
	})
}

// A vote that is left of an earlier round is owed, and is about to go: a renewal must not
// count it as it is.
func TestAVoteThatARenewalHasCountedIsNotWithdrawn(t *testing.T) {
	bubble(t, 3, func(t *testing.T, nodes []*fakeNode) {
		s := storeOn(t, nodes)
		nodes[0].hold("k", "x", 1, lease)
		nodes[1].hold("k", "x", 1, lease)
		nodes[2].set(func(f *fakeNode) { f.latency = 20 * time.Millisecond })
		go func() {
			time.Sleep(30 * time.Millisecond) // it has voted, and its answer is on the way
			nodes[2].set(func(f *fakeNode) { f.down = true })
		}()
		if rep := acquire(t, s, "a"); rep.Granted {
			t.Fatalf("got %+v", rep)
		}
		time.Sleep(5 * time.Second) // by now it is tried once a second
		if owner := nodes[2].holder("k"); owner != "a" {
			t.Fatalf("the node is held by %q, and nothing is owed", owner)
		}
		for _, f := range nodes[:2] {
			f.set(func(f *fakeNode) { delete(f.locks, "k"); delete(f.fences, "k") })
		}
		rep := acquire(t, s, "a")
		if !rep.Granted {
			t.Fatalf("got %+v", rep)
		}

		nodes[2].set(func(f *fakeNode) { f.down, f.latency = false, 100*time.Microsecond })
		nodes[0].set(func(f *fakeNode) { f.down = true })
		renew := func() (err error) {
			s.Renew(t.Context(), []driver.Renewal{{Key: "k", Owner: "a", TTL: lease}}, func(_ int, _ bool, outcome error) { err = outcome })
			return err
		}
		if err := renew(); err != nil {
			t.Fatalf("with two nodes of three: %v", err)
		}
		time.Sleep(3 * time.Second)
		for i, f := range nodes[1:] {
			if owner := f.holder("k"); owner != "a" {
				t.Errorf("node %d has renewed the lease of a, and is held by %q", i+1, owner)
			}
		}
		nodes[0].set(func(f *fakeNode) { f.down = false })
		free(t, s, "a", rep.Token)
	})
}

// The answer to an earlier proposal comes while the lock is released: the node that gives
// up the vote for that reason has given it up for the release, and knows the last token.
func TestAReleaseThatALateAnswerOvertakesIsOne(t *testing.T) {
	bubble(t, 3, func(t *testing.T, nodes []*fakeNode) {
		const slow = 160 * time.Millisecond // above the budget of a node
		s := storeOn(t, nodes)
		nodes[0].set(func(f *fakeNode) { f.latency = slow })
		nodes[1].hold("k", "x", 1, lease)
		nodes[2].set(func(f *fakeNode) { f.down = true })
		begin := time.Now()
		go func() {
			time.Sleep(50 * time.Millisecond)
			nodes[0].set(func(f *fakeNode) { f.latency = 100 * time.Microsecond })
			nodes[1].set(func(f *fakeNode) { delete(f.locks, "k"); delete(f.fences, "k") })
		}()
		rep := acquire(t, s, "a")
		if took := time.Since(begin); !rep.Granted || took > 2*slow {
			t.Fatalf("got %+v after %v; want it granted before the first answer of node 0", rep, took)
		}
		const handed = 1000 // in the process
		last := rep.Token + handed
		time.Sleep(time.Until(begin.Add(2*slow - 2*time.Millisecond)))
		nodes[0].set(func(f *fakeNode) { f.latency = 10 * time.Millisecond }) // of the release
		nodes[2].set(func(f *fakeNode) { f.down = false })                    // it never held it
		go func() {
			time.Sleep(time.Millisecond)
			nodes[0].set(func(f *fakeNode) { f.latency = 100 * time.Microsecond })
		}()
		free(t, s, "a", last)
		time.Sleep(time.Second)
		for i, f := range nodes[:2] {
			f.set(func(f *fakeNode) {
				if f.locks["k"] != nil || f.fences["k"].token != last {
					t.Errorf("node %d has %+v, token %d; want it free, with token %d", i, f.locks["k"], f.fences["k"].token, last)
				}
			})
		}
	})
}

// slowNode is a node that answers proposals in its own way.
type slowNode struct {
	*fakeNode
	propose func(p rediswire.Proposal, done func(rediswire.Vote, error))
}

func (n slowNode) Propose(p rediswire.Proposal, done func(rediswire.Vote, error)) {
	go n.propose(p, done)
}

// A lost answer is remembered for as long as its proposal may be executed. A proposal that
// is slower comes to nothing.
func TestAProposalThatIsSlowerThanTheLeaseComesToNothing(t *testing.T) {
	bubble(t, 5, func(t *testing.T, nodes []*fakeNode) {
		const ttl = 300 * time.Millisecond
		s := storeOn(t, nodes)
		s.nodes[3].server = slowNode{nodes[3], func(_ rediswire.Proposal, done func(rediswire.Vote, error)) {
			time.Sleep(10 * time.Millisecond)
			done(rediswire.Vote{Unknown: true}, errDown)
		}}
		var slow rediswire.Vote
		s.nodes[4].server = slowNode{nodes[4], func(p rediswire.Proposal, done func(rediswire.Vote, error)) {
			time.Sleep(400 * time.Millisecond)
			var v rediswire.Vote
			nodes[4].set(func(f *fakeNode) {
				v = f.vote(p)
				slow = v
			})
			time.Sleep(time.Millisecond)
			done(v, nil)
		}}
		begin := time.Now()
		req := ask("a")
		req.TTL = ttl
		rep, err := s.Acquire(t.Context(), req)
		if err != nil || !rep.Granted || rep.Ambiguous {
			t.Fatalf("got %+v, %v", rep, err)
		}
		s.Renew(t.Context(), []driver.Renewal{{Key: "k", Owner: "a", TTL: lease}}, func(_ int, _ bool, err error) {
			if err != nil {
				t.Error(err)
			}
		})
		time.Sleep(time.Until(begin.Add(350 * time.Millisecond))) // a lease after the lost answer, before the late vote
		free(t, s, "a", rep.Token)
		time.Sleep(time.Until(begin.Add(500 * time.Millisecond)))
		nodes[4].set(func(*fakeNode) {
			if !slow.Ended {
				t.Errorf("a proposal that came after 400ms is answered with %+v", slow)
			}
		})
		wantFree(t, nodes, 0)
	})
}

func TestOwnersHaveBallotsOfTheirOwn(t *testing.T) {
	bubble(t, 5, func(t *testing.T, nodes []*fakeNode) {
		s := storeOn(t, nodes)
		ahead := time.Now().Add(time.Hour).UnixMicro()
		if got := s.ballot("a", ahead); got != ahead+1 {
			t.Fatalf("above %d: %d", ahead, got)
		}
		if got := s.ballot("a", 0); got != ahead+2 {
			t.Errorf("a's next is %d; want it above %d", got, ahead+1)
		}
		if got, now := s.ballot("b", 0), time.Now().UnixMicro(); got < now-1000 || got > now+1000 {
			t.Errorf("b's is %d at %d", got, now)
		}
		if got := s.ballots.of("a"); got != ahead+2 {
			t.Errorf("a's last is %d, want %d", got, ahead+2)
		}
		for range 3 { // an owner that renews is remembered
			time.Sleep(s.maxTTL * 2 / 3)
			s.ballot("c", 0)
			if got := s.ballots.of("a"); got != ahead+2 {
				t.Fatalf("a's last is %d, want %d", got, ahead+2)
			}
		}
		for range 3 {
			time.Sleep(s.maxTTL + time.Second)
			s.ballot("c", 0)
		}
		if n := len(s.ballots.young) + len(s.ballots.old); s.ballots.of("a") != 0 || n > 2 {
			t.Errorf("a's last is %d after three leases without a renewal; %d owners are known", s.ballots.of("a"), n)
		}
		s.ballots.forget("c")
		if got := s.ballots.of("c"); got != 0 {
			t.Errorf("c's last is %d after its release", got)
		}
	})
}

func TestARefusalLeavesNoBallot(t *testing.T) {
	bubble(t, 3, func(t *testing.T, nodes []*fakeNode) {
		s := storeOn(t, nodes)
		known := func() int {
			time.Sleep(time.Second) // the last answers have come
			s.ballots.mu.Lock()
			defer s.ballots.mu.Unlock()
			return len(s.ballots.young) + len(s.ballots.old)
		}
		nodes[2].set(func(f *fakeNode) { f.latency = 10 * time.Millisecond }) // after the decision
		for _, f := range nodes {
			f.hold("k", "x", 1, lease)
		}
		if rep := acquire(t, s, "a"); rep.Granted {
			t.Fatalf("got %+v", rep)
		}
		if n := known(); n != 0 {
			t.Errorf("%d owners are known after a refusal by all nodes", n)
		}
		nodes[2].set(func(f *fakeNode) { delete(f.locks, "k"); delete(f.fences, "k") })
		if rep := acquire(t, s, "a"); rep.Granted {
			t.Fatalf("got %+v", rep)
		}
		if n := known(); n != 1 {
			t.Errorf("%d owners are known after a refusal with one vote, which is withdrawn", n)
		}
	})
}

// Of three clocks that are known first, two may be wrong.
func TestAMinorityOfClocksThatAnswersFirstLeadsNoTokenAhead(t *testing.T) {
	bubble(t, 5, func(t *testing.T, nodes []*fakeNode) {
		s := storeOn(t, nodes)
		for i, n := range s.nodes {
			n.offset.Store(0)
			if i > 2 {
				nodes[i].set(func(f *fakeNode) { f.ahead = time.Hour })
			}
		}
		for _, f := range nodes[1:3] {
			f.set(func(f *fakeNode) { f.latency = 5 * time.Millisecond })
		}
		rep := acquire(t, s, "a")
		if ahead := rep.Token - time.Now().UnixMicro(); !rep.Granted || ahead > time.Minute.Microseconds() {
			t.Errorf("%+v: %d µs ahead", rep, ahead)
		}
		free(t, s, "a", rep.Token)
	})
}
