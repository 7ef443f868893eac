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
	"testing/synctest"
	"time"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/driver"
	"github.com/interlock-go/interlock/core/internal/clock"
	"github.com/interlock-go/interlock/core/internal/rediswire"
)

const lease = 10 * time.Second

func ask(owner string) driver.AcquireRequest {
	return driver.AcquireRequest{Key: "k", Owner: owner, TTL: lease, Waiter: "w-" + owner, Late: func(driver.Reply, error) {}}
}

// acquire fails the test on an error.
func acquire(t *testing.T, s *Store, owner string) driver.Reply {
	t.Helper()
	rep, err := s.Acquire(t.Context(), ask(owner))
	if err != nil {
		t.Fatalf("Acquire for %s: %v", owner, err)
	}
	return rep
}

func free(t *testing.T, s *Store, owner string, token int64) {
	t.Helper()
	_, err := s.Release(t.Context(), driver.ReleaseRequest{
		Key: "k", Owner: owner, Token: token, TTL: lease, Deadline: time.Now().Add(time.Second),
	})
	if err != nil {
		t.Errorf("Release for %s: %v", owner, err)
	}
}

func TestAQuorumHasNoPlaces(t *testing.T) {
	s := storeOn(t, fakes(3))
	for _, kind := range []driver.Kind{driver.Shared, driver.Permit} {
		rep, err := s.Acquire(t.Context(), driver.AcquireRequest{Key: "k", Owner: "a:1", Kind: kind, AtMost: 2, TTL: time.Second})
		if !errors.Is(err, driver.ErrConfig) || rep.Granted || rep.Ambiguous {
			t.Errorf("kind %d: %+v, %v; want ErrConfig", kind, rep, err)
		}
	}
}

func TestALeaseLongerThanMaxTTLIsRefused(t *testing.T) {
	s := storeOn(t, fakes(3))
	_, err := s.Acquire(t.Context(), driver.AcquireRequest{Key: "k", Owner: "a:1", TTL: s.maxTTL + time.Millisecond})
	if !errors.Is(err, driver.ErrConfig) {
		t.Errorf("error is %v, want ErrConfig", err)
	}
}

// wantFree waits until no owner holds k on the nodes.
func wantFree(t *testing.T, nodes []*fakeNode, within time.Duration) {
	t.Helper()
	time.Sleep(within)
	for i, f := range nodes {
		if owner := f.holder("k"); owner != "" {
			t.Errorf("node %d is still held by %s", i, owner)
		}
	}
}

// bubble runs a test in fake time, with n nodes.
func bubble(t *testing.T, n int, f func(t *testing.T, nodes []*fakeNode)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		f(t, fakes(n))
		time.Sleep(2 * lease) // what is on the way arrives
	})
}

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
		// The node that executed what it never answered is freed when it can be.
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
			if !strings.Contains(err.Error(), want) {
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
// leaves. What the rounds before it have shown is the outcome then: a round that is cut
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
						// Each reaches the nodes in an order of its own.
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
		// A process whose nodes' clocks all have been set back.
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
		woken := make(chan driver.Signal, 9)
		stop := waiter.Watch("k", time.Now(), func(sig driver.Signal) { woken <- sig })
		defer stop()
		go free(t, holder, "x", rep.Token)
		// Node 0 says so first; the others still are held when they are asked.
		if sig := <-woken; sig.Next != "w-a" {
			t.Errorf("signal %+v", sig)
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

func TestRenewalIsDecidedByTheMajority(t *testing.T) {
	const (
		own = iota
		not
		down
		silent
	)
	for _, c := range []struct {
		nodes [5]int
		want  error
	}{
		{[5]int{own, own, own, own, own}, nil},
		{[5]int{own, own, own, silent, silent}, nil},
		{[5]int{own, own, own, not, down}, nil},
		{[5]int{own, own, not, not, not}, driver.ErrNotOwner},
		{[5]int{not, not, not, silent, silent}, driver.ErrNotOwner},
		{[5]int{own, own, not, not, down}, core.ErrUnavailable},
		{[5]int{own, own, down, down, down}, core.ErrUnavailable},
		{[5]int{own, own, silent, silent, silent}, core.ErrUnavailable},
		{[5]int{not, not, down, down, down}, core.ErrUnavailable},
	} {
		t.Run(fmt.Sprint(c.nodes), func(t *testing.T) {
			bubble(t, 5, func(t *testing.T, nodes []*fakeNode) {
				s := storeOn(t, nodes)
				for i, kind := range c.nodes {
					nodes[i].down, nodes[i].silent = kind == down, kind == silent
					if kind == own {
						nodes[i].hold("k", "a", 1, lease)
						nodes[i].hold("other", "a", 1, lease)
					}
				}
				ctx, cancel := context.WithTimeout(t.Context(), lease/6)
				defer cancel()
				var got [2]int
				begin := time.Now()
				s.Renew(ctx, []driver.Renewal{{Key: "k", Owner: "a", TTL: lease}, {Key: "other", Owner: "a", TTL: lease}},
					func(i int, _ bool, err error) {
						got[i]++
						if !errors.Is(err, c.want) || errors.Is(err, driver.ErrNotOwner) != (c.want == driver.ErrNotOwner) { //nolint:errorlint // which case it is
							t.Errorf("renewal %d: %v, want %v", i, err, c.want)
						}
					})
				if got != [2]int{1, 1} {
					t.Errorf("reported %v times, want once each", got)
				}
				if d := time.Since(begin); c.want == nil && d > time.Millisecond {
					t.Errorf("it took %v", d)
				}
			})
		})
	}
}

func TestReleaseIsDecidedByTheMajority(t *testing.T) {
	const (
		own = iota
		not
		down
	)
	for _, c := range []struct {
		nodes [5]int
		want  error
	}{
		{[5]int{own, own, own, own, own}, nil},
		{[5]int{own, own, own, down, down}, nil},
		{[5]int{own, own, own, not, not}, nil},
		{[5]int{own, own, not, not, down}, nil}, // gone from a majority, and it was ours
		{[5]int{own, own, not, not, not}, driver.ErrNotOwner},
		{[5]int{not, not, not, down, down}, driver.ErrNotOwner},
		{[5]int{own, own, down, down, down}, core.ErrUnavailable},
	} {
		t.Run(fmt.Sprint(c.nodes), func(t *testing.T) {
			bubble(t, 5, func(t *testing.T, nodes []*fakeNode) {
				s := storeOn(t, nodes)
				for i, kind := range c.nodes {
					nodes[i].down = kind == down
					if kind != not {
						nodes[i].hold("k", "a", 1, lease)
					}
				}
				_, err := s.Release(t.Context(), driver.ReleaseRequest{
					Key: "k", Owner: "a", Token: 1, TTL: lease, Deadline: time.Now().Add(time.Second),
				})
				if !errors.Is(err, c.want) {
					t.Errorf("Release: %v, want %v", err, c.want)
				}
				for _, f := range nodes {
					f.set(func(f *fakeNode) { f.down = false })
				}
				wantFree(t, nodes, 2*time.Second) // what was down is freed as soon as it is back
			})
		})
	}
}

func TestWhoMayVote(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		id := func(run string, uptime time.Duration) rediswire.Identity {
			return rediswire.Identity{RunID: run, Uptime: uptime}
		}
		fresh := func(change func(*settings)) *admission {
			set := &settings{maxTTL: lease, log: storeOn(t, fakes(3)).admission.log}
			change(set)
			return newAdmission([]string{"a", "b", "c"}, set)
		}
		want := func(m *admission, i int, kind error) {
			t.Helper()
			if err := m.leftOut(i, time.Now()); !errors.Is(err, kind) || kind == nil && err != nil {
				t.Errorf("node %d: %v, want %v", i, err, kind)
			}
		}
		m := fresh(func(*settings) {})
		want(m, 0, nil) // not met
		m.met(0, id("r0", time.Hour), time.Now())
		want(m, 0, nil)
		m.met(1, id("r1", lease/2), time.Now())
		want(m, 1, driver.ErrNotReady)
		time.Sleep(lease/2 + 2*time.Second)
		want(m, 1, nil)
		m.met(0, id("r0", time.Hour), time.Now()) // another connection
		want(m, 0, nil)
		m.met(0, id("again", time.Hour), time.Now()) // a wall clock that was set
		want(m, 0, driver.ErrNotReady)
		time.Sleep(lease)
		want(m, 0, driver.ErrNotReady)
		time.Sleep(clock.Drift(lease))
		want(m, 0, nil)
		m.met(2, id("r1", time.Hour), time.Now())
		want(m, 1, nil)
		want(m, 2, core.ErrConfig) // the same server as node 1
		m.met(1, id("r3", time.Hour), time.Now())
		want(m, 2, nil)

		m = fresh(func(set *settings) { set.young = true })
		m.met(0, id("r0", 0), time.Now())
		want(m, 0, nil)
		m.met(0, id("r1", 0), time.Now())
		want(m, 0, driver.ErrNotReady)

		m = fresh(func(set *settings) { set.durable = true })
		m.met(0, id("r0", 0), time.Now())
		m.met(0, id("r1", 0), time.Now())
		want(m, 0, nil)
	})
}

func TestOneReleaseWakesOnceOrTwice(t *testing.T) {
	bubble(t, 5, func(t *testing.T, nodes []*fakeNode) {
		s := storeOn(t, nodes)
		var got []string
		var mu sync.Mutex
		stop := s.Watch("k", time.Now(), func(sig driver.Signal) {
			mu.Lock()
			defer mu.Unlock()
			got = append(got, sig.Next)
		})
		heard := func() []string {
			mu.Lock()
			defer mu.Unlock()
			all := got
			got = nil
			return all
		}
		say := func(i int, owner, next string) {
			for _, wake := range nodes[i].watched {
				wake(owner, next)
			}
		}
		for i := range nodes {
			say(i, "x", []string{"a,b", "b,a", "a,b,c"}[i%3])
		}
		// In the first's order, and then with who else waits.
		if all := heard(); strings.Join(all, " ") != "a,b a,b,c" {
			t.Errorf("woken with %q", all)
		}
		say(0, "y", "b")
		if n := len(heard()); n != 1 {
			t.Errorf("the next release woke %d times", n)
		}
		for i := range nodes {
			say(i, "", "") // all subscriptions are made
		}
		time.Sleep(10 * time.Millisecond)
		if all := heard(); len(all) != 1 || all[0] != "" {
			t.Errorf("woken with %q, want one look", all)
		}
		for range 100 { // a node that is down says so over and over
			say(0, "", "")
			time.Sleep(100 * time.Millisecond)
		}
		if n := len(heard()); n < 5 || n > 20 {
			t.Errorf("woken %d times in 10s", n)
		}
		stop()
		say(0, "z", "a")
		time.Sleep(2 * time.Second)
		if len(heard()) > 0 {
			t.Error("woken after the end")
		}
	})
}
