package quorum

import (
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/driver"
	"github.com/interlock-go/interlock/core/internal/clock"
	"github.com/interlock-go/interlock/core/internal/logs"
	"github.com/interlock-go/interlock/core/internal/rediswire"
	"github.com/interlock-go/interlock/internal/logtest"
)

// takes acquires a lock for an owner as soon as that is possible, and returns how long it
// took.
func takes(t *testing.T, s *Store, owner string) time.Duration {
	t.Helper()
	for begin := time.Now(); ; time.Sleep(100 * time.Millisecond) {
		rep, err := s.Acquire(t.Context(), ask(owner))
		switch {
		case err == nil && rep.Granted:
			return time.Since(begin)
		case err != nil && !errors.Is(err, driver.ErrNotReady):
			t.Fatal(err)
		case time.Since(begin) > 10*longest:
			t.Fatalf("not granted in %v: %+v, %v", time.Since(begin), rep, err)
		}
	}
}

// wantOut fails unless the votes of so many nodes that a store has met count.
func wantOut(t *testing.T, s *Store, out int) {
	t.Helper()
	n := 0
	for i := range s.nodes {
		if s.admission.leftOut(i, time.Now()) != nil {
			n++
		}
	}
	if n != out {
		t.Errorf("%d nodes have no vote, want %d", n, out)
	}
}

// A fixed lease on two nodes of three. A node of the two is restarted without its data
// while its clock is slow. The clock is set right, so that the server looks old to a
// process that meets it for the first time.
func TestANodeThatForgotItsVotesHasNoneForANewProcess(t *testing.T) {
	bubble(t, 3, func(t *testing.T, nodes []*fakeNode) {
		holder := storeOn(t, nodes)
		nodes[2].set(func(f *fakeNode) { f.down = true })
		begin := time.Now()
		req := ask("a")
		req.TTL = longest
		if rep, err := holder.Acquire(t.Context(), req); err != nil || !rep.Granted {
			t.Fatalf("%+v, %v", rep, err)
		}
		nodes[2].set(func(f *fakeNode) { f.down = false })
		nodes[1].set(func(f *fakeNode) { f.ahead = -time.Minute })
		nodes[1].restart()
		time.Sleep(time.Second)
		nodes[1].set(func(f *fakeNode) { f.ahead = 0 })
		took := takes(t, newcomer(t, nodes), "b")
		if held := time.Since(begin); held < longest {
			t.Errorf("b has the lock %v after a, whose lease is of %v", held, longest)
		}
		if most := longest + clock.Drift(longest) + 2*time.Second; took > most {
			t.Errorf("it took %v, want at most %v", took, most)
		}
	})
}

func TestAProcessTrustsNodesThatOthersHaveWaitedFor(t *testing.T) {
	bubble(t, 3, func(t *testing.T, nodes []*fakeNode) {
		rep := acquire(t, newcomer(t, nodes), "a")
		if !rep.Granted {
			t.Fatalf("got %+v", rep)
		}
		for i, f := range nodes {
			if n := f.count("propose"); n > 2 {
				t.Errorf("node %d was asked %d times; the first request of a process takes two rounds", i, n)
			}
		}
	})
}

func TestAFirstStartGrantsAfterTheLongestLease(t *testing.T) {
	bubble(t, 3, func(t *testing.T, nodes []*fakeNode) {
		for _, f := range nodes {
			f.restart()
		}
		a, b, c := newcomer(t, nodes), newcomer(t, nodes), newcomer(t, nodes)
		if _, err := a.Acquire(t.Context(), ask("a")); !errors.Is(err, driver.ErrNotReady) {
			t.Fatalf("the first request: %v, want ErrNotReady", err)
		}
		for i, f := range nodes {
			if owner := f.holder("k"); owner != "" {
				t.Errorf("node %d has no vote, and took the lock for %q", i, owner)
			}
		}
		time.Sleep(longest / 2)
		took := takes(t, b, "b") // it does not wait for as long again
		if most := longest/2 + clock.Drift(longest) + longest/lookShare/lookShare + time.Second; took < longest/2 || took > most {
			t.Errorf("half of the longest lease after the first request the lock took %v, want up to %v", took, most)
		}
		free(t, b, "b", 0)
		if took := takes(t, c, "c"); took > time.Second {
			t.Errorf("a later process had to wait for %v", took)
		}
		free(t, c, "c", 0)
	})
}

// FLUSHALL is no restart: the server has the same run id, and goes on answering.
func TestANodeThatLosesItsDataWhileItRunsHasNoVote(t *testing.T) {
	bubble(t, 3, func(t *testing.T, nodes []*fakeNode) {
		var said logtest.Log
		holder, other := storeOn(t, nodes), storeOn(t, nodes)
		holder.admission.log = logs.To(said.Logger())
		begin := time.Now()
		req := ask("a")
		req.TTL = longest
		if rep, err := holder.Acquire(t.Context(), req); err != nil || !rep.Granted {
			t.Fatalf("%+v, %v", rep, err)
		}
		for _, f := range nodes[:2] {
			f.flush()
		}
		if rep, err := other.Acquire(t.Context(), ask("b")); rep.Granted || !errors.Is(err, driver.ErrNotReady) {
			t.Fatalf("a second holder: %+v, %v", rep, err)
		}
		time.Sleep(10 * time.Millisecond)
		wantOut(t, other, 2)
		time.Sleep(longest / 2)
		wantOut(t, other, 2)
		nodes[0].flush() // once more: that loss counts too
		again := time.Now()
		time.Sleep(time.Second)
		takes(t, other, "b")
		if held := time.Since(begin); held < longest {
			t.Errorf("b has the lock %v after a, whose lease is of %v", held, longest)
		}
		time.Sleep(time.Until(again.Add(longest)))
		wantOut(t, other, 1)
		time.Sleep(longest / 2)
		wantOut(t, other, 0)
		synctest.Wait()
		synctest.Wait()
		if n := strings.Count(said.String(), "lost its data while it ran"); n != 2 {
			t.Errorf("the log says %d times that a node lost its data, want once for each:\n%s", n, said.String())
		}
	})
}

// A process counts from when it has seen a mark. If that is lost, another process may have
// let the node vote since, and the node may have forgotten a vote again.
func TestALostMarkBeginsTheWaitAnew(t *testing.T) {
	bubble(t, 3, func(t *testing.T, nodes []*fakeNode) {
		s := storeOn(t, nodes)
		s.start()
		nodes[0].restart()
		time.Sleep(longest) // it is noticed within a third of that
		wantOut(t, s, 1)
		nodes[0].flush()
		lost := time.Now()
		for s.admission.leftOut(0, time.Now()) != nil {
			time.Sleep(time.Second)
		}
		if since := time.Since(lost); since < longest {
			t.Errorf("it votes %v after it has lost its data", since)
		}
	})
}

// Nodes are restarted one after the other, and each has its vote again before the next one
// goes. A process that takes no lock meanwhile is served at once afterwards.
func TestAnIdleProcessIsServedAfterARollingRestart(t *testing.T) {
	for name, alone := range map[string]bool{"beside another process": false, "alone": true} {
		t.Run(name, func(t *testing.T) {
			bubble(t, 3, func(t *testing.T, nodes []*fakeNode) {
				idle := storeOn(t, nodes)
				acquire(t, idle, "a")
				free(t, idle, "a", 0)
				for i, f := range nodes {
					f.restart()
					if alone {
						time.Sleep(2 * longest)
						continue
					}
					other := storeOn(t, nodes)
					for end := time.Now().Add(2 * longest); time.Now().Before(end); time.Sleep(time.Second) {
						owner := fmt.Sprint("b", i)
						acquire(t, other, owner)
						free(t, other, owner, 0)
					}
				}
				begin := time.Now()
				rep := acquire(t, idle, "a2")
				if took := time.Since(begin); !rep.Granted || took > time.Second {
					t.Errorf("%+v after %v", rep, took)
				}
				free(t, idle, "a2", rep.Token)
			})
		})
	}
}

// A vote counts for the run of the server that gave it.
func TestAVoteOfARunThatHasEndedDoesNotCount(t *testing.T) {
	bubble(t, 3, func(t *testing.T, nodes []*fakeNode) {
		s := storeOn(t, nodes)
		s.nodes[1].server = slowNode{nodes[1], func(p rediswire.Proposal, done func(rediswire.Vote, error)) {
			var v rediswire.Vote
			nodes[1].set(func(f *fakeNode) { v = f.vote(p) })
			// It is started anew, and another process knows it by now.
			id := rediswire.Identity{RunID: "next", Clock: v.Clock, Asked: time.Now(), Mark: mark{"next", "m", longest, true}.text()}
			_ = s.met(1, id)
			done(v, nil)
		}}
		nodes[2].set(func(f *fakeNode) { f.down = true })
		if rep, err := s.Acquire(t.Context(), ask("a")); rep.Granted {
			t.Errorf("%+v, %v: with the vote of a run that has ended", rep, err)
		}
	})
}

func TestWhoMayVote(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		votes := func(run string) string { return mark{run, "m", lease, true}.text() }
		waits := func(run string) string { return mark{run, "m", lease, false}.text() }
		id := func(run, mark string) rediswire.Identity {
			return rediswire.Identity{RunID: run, Mark: mark, Asked: time.Now()}
		}
		fresh := func(durable bool) *admission {
			return newAdmission([]string{"a", "b", "c"}, &settings{maxTTL: lease, durable: durable, log: logs.To(slog.New(slog.DiscardHandler))})
		}
		want := func(m *admission, i int, kind error) {
			t.Helper()
			if err := m.leftOut(i, time.Now()); !errors.Is(err, kind) || kind == nil && err != nil {
				t.Errorf("node %d: %v, want %v", i, err, kind)
			}
		}
		// writes returns the mark to write for a node.
		writes := func(m *admission, i int) string {
			_, to, _ := m.due(i, time.Now())
			return to
		}
		m := fresh(false)
		want(m, 0, nil) // not met
		m.met(0, id("r0", votes("r0")), time.Now())
		want(m, 0, nil)
		m.met(1, id("r1", ""), time.Now())
		want(m, 1, driver.ErrNotReady)
		if to := writes(m, 1); readMark(to).votes || readMark(to).run != "r1" {
			t.Errorf("a node without a mark gets %q", to)
		}
		m.met(1, id("r1", votes("r0")), time.Now()) // the data of another server, or of another run
		want(m, 1, driver.ErrNotReady)
		if to := writes(m, 1); readMark(to).votes || readMark(to).run != "r1" {
			t.Errorf("a node with the mark of another run gets %q", to)
		}
		m.met(1, id("r1", waits("r1")), time.Now())
		time.Sleep(lease)
		if to := writes(m, 1); to != "" {
			t.Errorf("a node that waits gets %q", to)
		}
		time.Sleep(clock.Drift(lease))
		if to := writes(m, 1); to != votes("r1") {
			t.Errorf("a node that has waited gets %q, want %q", to, votes("r1"))
		}
		want(m, 1, driver.ErrNotReady)
		m.met(1, id("r1", votes("r1")), time.Now())
		want(m, 1, nil)

		// The connection of a run that has ended has introduced it late.
		old := id("r0", votes("r0"))
		time.Sleep(time.Millisecond)
		m.met(0, id("again", votes("again")), time.Now())
		want(m, 0, nil)
		m.met(0, old, time.Now())
		want(m, 0, driver.ErrNotReady)
		time.Sleep(time.Millisecond)
		m.met(0, id("again", votes("again")), time.Now())
		want(m, 0, nil)

		m.met(2, id("r1", votes("r1")), time.Now())
		want(m, 1, nil)
		want(m, 2, core.ErrConfig) // the same server as node 1
		m.met(1, id("r3", votes("r3")), time.Now())
		want(m, 2, nil)

		m = fresh(true)
		m.met(0, id("r0", ""), time.Now())
		want(m, 0, driver.ErrNotReady)
		m.met(0, id("r0", votes("r0")), time.Now())
		m.met(0, id("r1", votes("r0")), time.Now())
		want(m, 0, nil)
	})
}

// A lease may be as long as the greatest MaxTTL of all processes.
func TestADifferentMaxTTLIsReported(t *testing.T) {
	bubble(t, 3, func(t *testing.T, nodes []*fakeNode) {
		var said logtest.Log
		set := &settings{log: logs.To(said.Logger()), maxTTL: longest / 2}
		s := newStore([]string{"node0", "node1", "node2"}, set)
		defer s.Close()
		for i, f := range nodes {
			s.nodes[i].server = &fakeWire{fakeNode: f, store: s, index: i}
		}
		found, err := s.Check(t.Context())
		if all := strings.Join(found, "\n"); err != nil || strings.Count(all, "MaxTTL 1m0s") != 3 {
			t.Errorf("Check: %q, %v", found, err)
		}
		synctest.Wait()
		if n := strings.Count(said.String(), "different values of MaxTTL"); n != 3 {
			t.Errorf("the log says it %d times for three nodes:\n%s", n, said.String())
		}
		nodes[0].set(func(f *fakeNode) { f.mark = mark{f.run, "m", longest, false}.text() })
		since := time.Now()
		for s.admission.leftOut(0, time.Now()) == nil {
			time.Sleep(time.Second)
		}
		for s.admission.leftOut(0, time.Now()) != nil {
			time.Sleep(time.Second)
		}
		if took := time.Since(since); took < longest {
			t.Errorf("a node has its vote after %v, and another process has a MaxTTL of %v", took, longest)
		}
	})
}
