package quorum

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/driver"
	"github.com/interlock-go/interlock/core/observe"
)

func TestGrantedWhenAMajorityHasGranted(t *testing.T) {
	bubble(t, 5, func(t *testing.T, nodes []*fakeNode) {
		s := storeOn(t, nodes)
		for i, f := range nodes {
			f.latency = time.Duration(i+1) * time.Millisecond
		}
		begin := time.Now()
		rep := acquire(t, s, "a")
		if d := time.Since(begin); !rep.Granted || d != 6*time.Millisecond {
			t.Errorf("granted %v after %v; the third node answers after 6ms", rep.Granted, d)
		}
		if !rep.Sent.Equal(begin) || rep.Ambiguous {
			t.Errorf("the lease counts from %v after the first send, ambiguous %v", rep.Sent.Sub(begin), rep.Ambiguous)
		}
		free(t, s, "a", rep.Token)
		wantFree(t, nodes, 100*time.Millisecond)
	})
}

func TestSlowNodesHoldUpNobody(t *testing.T) {
	bubble(t, 5, func(t *testing.T, nodes []*fakeNode) {
		s := storeOn(t, nodes)
		nodes[1].silent, nodes[3].deaf = true, true
		for i := range 120 {
			if i == 20 {
				time.Sleep(2 * ioTimeout)
				nodes[1].set(func(f *fakeNode) { f.calls = nil })
			}
			owner := fmt.Sprint("a", i)
			begin := time.Now()
			rep := acquire(t, s, owner)
			if d := time.Since(begin); !rep.Granted || d > time.Millisecond {
				t.Fatalf("granted %v after %v", rep.Granted, d)
			}
			begin = time.Now()
			free(t, s, owner, rep.Token)
			if d := time.Since(begin); d > time.Millisecond {
				t.Errorf("the release took %v", d)
			}
		}
		if n := nodes[1].count("propose"); n > maxProbes {
			t.Errorf("%d requests piled up at a node that does not answer", n)
		}
		// A node that executed a request without answering is freed when it can be.
		nodes[1].set(func(f *fakeNode) { f.silent = false })
		nodes[3].set(func(f *fakeNode) { f.deaf = false })
		wantFree(t, nodes, 3*time.Second)
	})
}

func TestWithoutAMajorityNothingIsGranted(t *testing.T) {
	bubble(t, 5, func(t *testing.T, nodes []*fakeNode) {
		s := storeOn(t, nodes)
		for i := range 3 {
			nodes[i].silent = true
		}
		begin := time.Now()
		rep, err := s.Acquire(t.Context(), ask("a"))
		if !errors.Is(err, core.ErrUnavailable) || rep.Granted || !rep.Ambiguous {
			t.Errorf("%+v, %v; want ErrUnavailable, and to be told that it may be executed yet", rep, err)
		}
		if d := time.Since(begin); d > lease/10 {
			t.Errorf("it took %v", d)
		}
		wantFree(t, nodes, 100*time.Millisecond)
	})
}

// It is decided as soon as two of four have refused, before the others answer: to
// say that none of them voted would blame nodes that are well.
func TestAnErrorBlamesNoNodeThatWasNotWaitedFor(t *testing.T) {
	bubble(t, 4, func(t *testing.T, nodes []*fakeNode) {
		s := storeOn(t, nodes)
		nodes[0].down, nodes[1].down = true, true
		_, err := s.Acquire(t.Context(), ask("a"))
		if !errors.Is(err, core.ErrUnavailable) {
			t.Fatalf("%v, want ErrUnavailable", err)
		}
		for _, want := range []string{"2 of 4 nodes gave no vote", "3 votes are needed", "node0", "node1"} {
			if !strings.Contains(observe.RootCause(err).Error(), want) { // what logs have
				t.Errorf("the error does not say %q: %v", want, err)
			}
		}
		for _, no := range []string{"0 of 4", "node2", "node3"} {
			if strings.Contains(err.Error(), no) {
				t.Errorf("the error says %q: %v", no, err)
			}
		}
	})
}

// Owners that keep enough nodes to stop all others hold the lock as far as a caller
// is concerned, even if none of them has a majority.
func TestACallerThatDoesNotWaitHearsThatASplitVoteIsHeld(t *testing.T) {
	for name, c := range map[string]struct {
		owners []string // by node
		down   int      // of the last nodes
		want   error
	}{
		"two owners, two nodes each": {[]string{"x", "x", "y", "y", ""}, 0, core.ErrHeld},
		"one owner, half of four":    {[]string{"x", "x", "", ""}, 0, core.ErrHeld},
		"one node is held, one down": {[]string{"x", "", "", ""}, 1, driver.ErrNotReady},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, len(c.owners), func(t *testing.T, nodes []*fakeNode) {
				for i, owner := range c.owners {
					if owner != "" {
						nodes[i].hold("k", owner, 1, 5*time.Second)
					}
					nodes[i].down = i >= len(nodes)-c.down
				}
				l, err := core.New(storeOn(t, nodes))
				if err != nil {
					t.Fatal(err)
				}
				if _, err := l.TryLock(t.Context(), "k"); !errors.Is(err, c.want) {
					t.Errorf("TryLock: %v, want %v", err, c.want)
				}
				// A caller that waits gets it when their leases have ended.
				lease, err := l.Lock(t.Context(), "k", core.Wait(20*time.Second))
				if err != nil {
					t.Errorf("Lock: %v", err)
				} else if err := lease.Release(t.Context()); err != nil {
					t.Error(err)
				}
				if err := l.Close(t.Context()); err != nil {
					t.Error(err)
				}
			})
		})
	}
}

// The pauses between rounds are random, and the last one may end just before the caller
// leaves. The result of the rounds before it is the outcome then: a round that is cut
// off has none.
func TestNoRoundBeginsThatTheCallerWouldNotSeeTheEndOf(t *testing.T) {
	for name, c := range map[string]struct {
		n     int
		nodes func(nodes []*fakeNode)
		want  func(rep driver.Reply, err error) bool
	}{
		"two owners, two nodes each": {
			5,
			func(nodes []*fakeNode) {
				for i, owner := range []string{"x", "x", "y", "y"} {
					nodes[i].hold("k", owner, 1, lease)
				}
			},
			func(rep driver.Reply, err error) bool { return err == nil && !rep.Granted && rep.Holder != "" },
		},
		"one node is held, one down": {
			4,
			func(nodes []*fakeNode) {
				nodes[0].hold("k", "x", 1, lease)
				nodes[3].down = true
			},
			func(_ driver.Reply, err error) bool { return errors.Is(err, driver.ErrNotReady) },
		},
		"three do not answer": {
			5,
			func(nodes []*fakeNode) {
				for _, f := range nodes[:3] {
					f.silent = true
				}
			},
			func(_ driver.Reply, err error) bool { return errors.Is(err, driver.ErrUnavailable) },
		},
	} {
		t.Run(name, func(t *testing.T) {
			for wait := 200 * time.Millisecond; wait < time.Second; wait += 7 * time.Millisecond {
				bubble(t, c.n, func(t *testing.T, nodes []*fakeNode) {
					s := storeOn(t, nodes)
					for _, f := range nodes {
						f.latency = 5 * time.Millisecond
					}
					c.nodes(nodes)
					req := ask("a")
					req.Deadline = time.Now().Add(wait)
					if rep, err := s.Acquire(t.Context(), req); !c.want(rep, err) {
						t.Errorf("within %v: %+v, %v", wait, rep, err)
					}
				})
			}
		})
	}
}

func TestHeldByOneOwnerOnAMajority(t *testing.T) {
	bubble(t, 5, func(t *testing.T, nodes []*fakeNode) {
		s := storeOn(t, nodes)
		for i, ttl := range []time.Duration{7, 5, 6} {
			nodes[i].hold("k", "x", 1, ttl*time.Second)
		}
		rep := acquire(t, s, "a")
		if rep.Granted || rep.Holder != "x" || !rep.Listed || rep.Ambiguous {
			t.Errorf("reply %+v", rep)
		}
		if rep.TTL > 5*time.Second || rep.TTL < 4*time.Second {
			t.Errorf("the first of its nodes becomes free in 5s, the reply says %v", rep.TTL)
		}
		// The two that were free were taken, and are given up.
		time.Sleep(100 * time.Millisecond)
		for i := 3; i < 5; i++ {
			if owner := nodes[i].holder("k"); owner != "" {
				t.Errorf("node %d is held by %q", i, owner)
			}
		}
	})
}

func TestSplitVotesResolve(t *testing.T) {
	for name, broken := range map[string]int{"five nodes": 0, "one down": 1, "two down": 2} {
		t.Run(name, func(t *testing.T) {
			bubble(t, 5, func(t *testing.T, nodes []*fakeNode) {
				for i := range broken {
					nodes[i].down = true
				}
				const processes = 8
				var wg sync.WaitGroup
				var granted atomic.Int32
				worst := atomic.Int64{}
				begin := time.Now()
				for i := range processes {
					s := storeOn(t, nodes)
					wg.Go(func() {
						// Each reaches the nodes in a different order.
						owner := fmt.Sprint("p", i)
						for {
							rep, err := s.Acquire(t.Context(), ask(owner))
							switch {
							case errors.Is(err, driver.ErrNotReady):
							case err != nil:
								t.Error(err)
								return
							case rep.Granted:
								granted.Add(1)
								free(t, s, owner, rep.Token)
								worst.Store(int64(time.Since(begin)))
								return
							}
							time.Sleep(time.Duration(1+rand.IntN(20)) * time.Millisecond)
						}
					})
				}
				for range 50 { // jitter, so that votes split
					for _, f := range nodes {
						f.set(func(f *fakeNode) { f.latency = time.Duration(50+rand.IntN(200)) * time.Microsecond })
					}
					time.Sleep(time.Millisecond)
				}
				wg.Wait()
				t.Logf("%d processes had their turn within %v", granted.Load(), time.Duration(worst.Load()))
				if granted.Load() != processes {
					t.Errorf("%d of %d were granted", granted.Load(), processes)
				}
				wantFree(t, nodes, time.Second)
			})
		})
	}
}

func TestABallotRisesAboveWhatAnyNodeHasSeen(t *testing.T) {
	bubble(t, 5, func(t *testing.T, nodes []*fakeNode) {
		s := storeOn(t, nodes)
		far := time.Now().Add(time.Hour).UnixMicro()
		for i := range 3 {
			nodes[i].fences["k"] = fakeFence{token: far + int64(i)}
		}
		rep := acquire(t, s, "a")
		if !rep.Granted || rep.Token <= far {
			t.Fatalf("granted %v with token %d, nodes have seen %d", rep.Granted, rep.Token, far)
		}
		free(t, s, "a", rep.Token+7) // seven hand-offs
		next := acquire(t, s, "b")
		if next.Token <= rep.Token+7 {
			t.Errorf("token %d after %d", next.Token, rep.Token+7)
		}
		free(t, s, "b", next.Token)
	})
}

// A process hands a lock on among its own callers, with tokens that the nodes do
// not see, and dies. The next holder's tokens are above those.
func TestTokensStayAboveThoseOfAHolderThatDied(t *testing.T) {
	bubble(t, 5, func(t *testing.T, nodes []*fakeNode) {
		for _, f := range nodes {
			f.ahead = time.Hour
		}
		s := storeOn(t, nodes)
		rep := acquire(t, s, "dead")
		time.Sleep(lease - time.Second)
		handed := rep.Token + (lease-time.Second).Microseconds()*99/100 - 1
		time.Sleep(2 * time.Second)
		// A process after the clocks of all nodes have been set back.
		for _, f := range nodes {
			f.set(func(f *fakeNode) { f.ahead = 0 })
		}
		other := storeOn(t, nodes)
		next := acquire(t, other, "b")
		if !next.Granted || next.Token <= handed {
			t.Errorf("token %d after %d was handed on", next.Token, handed)
		}
		free(t, other, "b", next.Token)
	})
}

func TestTokensFollowTheMiddleClock(t *testing.T) {
	bubble(t, 5, func(t *testing.T, nodes []*fakeNode) {
		nodes[0].ahead, nodes[4].ahead = 1000*time.Hour, -1000*time.Hour
		s := storeOn(t, nodes)
		rep := acquire(t, s, "a")
		if d := time.Duration(rep.Token-time.Now().UnixMicro()) * time.Microsecond; d.Abs() > time.Second {
			t.Errorf("the token is %v from the clock of the right nodes", d)
		}
		free(t, s, "a", rep.Token)
	})
}

func TestCallersThatLeaveGetTheOutcomeLate(t *testing.T) {
	bubble(t, 5, func(t *testing.T, nodes []*fakeNode) {
		s := storeOn(t, nodes)
		for _, f := range nodes {
			f.latency = 20 * time.Millisecond
		}
		late := make(chan driver.Reply, 2)
		req := ask("a")
		req.Late = func(rep driver.Reply, _ error) { late <- rep }
		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		if _, err := s.Acquire(ctx, req); !errors.Is(err, driver.ErrPending) {
			t.Fatalf("error is %v, want ErrPending", err)
		}
		if rep := <-late; !rep.Granted {
			t.Errorf("late reply %+v", rep)
		}
		free(t, s, "a", 0)
		req.Deadline = time.Now().Add(time.Millisecond)
		if _, err := s.Acquire(t.Context(), req); !errors.Is(err, driver.ErrPending) {
			t.Fatalf("error is %v, want ErrPending", err)
		}
		<-late
		free(t, s, "a", 0)
		wantFree(t, nodes, time.Second)
		if len(late) > 0 {
			t.Error("Late was called again")
		}
	})
}

func TestALaggingReleaseIsNotTakenForAHolder(t *testing.T) {
	bubble(t, 5, func(t *testing.T, nodes []*fakeNode) {
		holder, waiter := storeOn(t, nodes), storeOn(t, nodes)
		rep := acquire(t, holder, "x")
		if second := acquire(t, waiter, "a"); second.Holder != "x" {
			t.Fatalf("reply %+v", second)
		}
		for i := 1; i < 5; i++ {
			nodes[i].set(func(f *fakeNode) { f.latency = 3 * time.Millisecond })
		}
		woken := make(chan driver.Waiters, 9)
		stop := waiter.watch("k", time.Now(), func(list driver.Waiters) { woken <- list })
		defer stop()
		go free(t, holder, "x", rep.Token)
		// Node 0 says so first; the others still are held when they are asked.
		if list := <-woken; list != "w-a" {
			t.Errorf("list %q", list)
		}
		for _, f := range nodes {
			f.set(func(f *fakeNode) { f.latency = 10 * time.Microsecond })
		}
		if second := acquire(t, waiter, "a"); !second.Granted {
			t.Errorf("reply %+v", second)
		}
		time.Sleep(time.Second)
		if n := len(woken); n > 1 {
			t.Errorf("one release woke %d times", n+1)
		}
		free(t, waiter, "a", 0)
		wantFree(t, nodes, time.Second)
	})
}
