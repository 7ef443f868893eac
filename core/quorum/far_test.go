package quorum

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/observe"
)

// far makes nodes at a distance: a message takes half the round trip.
func far(nodes []*fakeNode, trip time.Duration) {
	for _, f := range nodes {
		f.set(func(f *fakeNode) { f.latency, f.setUp = trip/2, 5*trip })
	}
}

// To make a connection takes several round trips, which are no part of the lease: the
// first lock of a process waits for them.
func TestTheFirstLockWaitsForConnectionsToDistantNodes(t *testing.T) {
	for trip := 20 * time.Millisecond; trip <= 320*time.Millisecond; trip *= 2 {
		bubble(t, 5, func(t *testing.T, nodes []*fakeNode) {
			far(nodes, trip)
			s := newcomer(t, nodes)
			begin := time.Now()
			req := ask("a")
			req.Deadline = begin.Add(4 * time.Second)
			rep, err := s.Acquire(t.Context(), req)
			if err != nil || !rep.Granted {
				t.Fatalf("round trip %v: %+v, %v after %v", trip, rep, err, time.Since(begin))
			}
			if d := time.Since(begin); d > 7*trip+10*time.Millisecond {
				t.Errorf("round trip %v: granted after %v", trip, d)
			}
			if d := time.Since(rep.Sent); d > trip {
				t.Errorf("round trip %v: %v of the lease have passed", trip, d)
			}
			free(t, s, "a", rep.Token)
			time.Sleep(time.Second)
			wantFree(t, nodes, 0)
		})
	}
}

// A process without connections hears soon that a majority cannot be reached.
func TestTheFirstLockDoesNotWaitForNodesThatAreDown(t *testing.T) {
	for name, gone := range map[string]func(*fakeNode){
		"down":   func(f *fakeNode) { f.down = true },
		"silent": func(f *fakeNode) { f.silent = true },
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, 5, func(t *testing.T, nodes []*fakeNode) {
				far(nodes, 20*time.Millisecond)
				for _, f := range nodes[:3] {
					f.set(gone)
				}
				s := newcomer(t, nodes)
				begin := time.Now()
				if rep, err := s.Acquire(t.Context(), ask("a")); !errors.Is(err, core.ErrUnavailable) {
					t.Errorf("%+v, %v; want ErrUnavailable", rep, err)
				}
				if d := time.Since(begin); d > 2500*time.Millisecond {
					t.Errorf("it took %v", d)
				}
				for _, f := range nodes {
					f.set(func(f *fakeNode) { f.down, f.silent = false, false })
				}
			})
		})
	}
}

// Nodes get for their votes what their answers take, as far as that is little of a lease.
func TestShortLeasesAreGrantedByDistantNodes(t *testing.T) {
	for ttl, trip := range map[time.Duration]time.Duration{
		5 * time.Second:        80 * time.Millisecond,
		2 * time.Second:        150 * time.Millisecond,
		600 * time.Millisecond: 40 * time.Millisecond,
		30 * time.Second:       480 * time.Millisecond,
	} {
		bubble(t, 3, func(t *testing.T, nodes []*fakeNode) {
			far(nodes, trip)
			s := newcomer(t, nodes)
			for range 5 {
				req := ask("a")
				req.TTL = ttl
				begin := time.Now()
				rep, err := s.Acquire(t.Context(), req)
				if err != nil || !rep.Granted {
					t.Fatalf("a lease of %v over %v: %+v, %v", ttl, trip, rep, err)
				}
				if d := time.Since(rep.Sent); d > trip {
					t.Errorf("a lease of %v over %v: %v of it have passed, %v in all", ttl, trip, d, time.Since(begin))
				}
				free(t, s, "a", rep.Token)
				time.Sleep(time.Second)
			}
		})
	}
}

// If the answers of nodes take longer than before, the store finds that out within one
// try.
func TestNodesThatBecomeSlowerAreWaitedForLonger(t *testing.T) {
	bubble(t, 5, func(t *testing.T, nodes []*fakeNode) {
		s := storeOn(t, nodes)
		far(nodes, 250*time.Millisecond)
		rep := acquire(t, s, "a") // a hundredth of the lease is 100ms
		if !rep.Granted {
			t.Fatalf("%+v", rep)
		}
		free(t, s, "a", rep.Token)
		time.Sleep(time.Second)
		before := requests(nodes)
		rep = acquire(t, s, "b")
		if n := requests(nodes) - before; n != 5 {
			t.Errorf("the next lock took %d proposals, want 5", n)
		}
		free(t, s, "b", rep.Token)
	})
}

func TestAnErrorSaysWhatHelpsAgainstSlowNodes(t *testing.T) {
	for _, c := range []struct {
		ttl, trip, timeout time.Duration
		want               []string
	}{
		{500 * time.Millisecond, 80 * time.Millisecond, 0, []string{
			"answers take 80ms", "a lease of 500ms leaves a node 41.666666ms", "at least 1.4s",
		}},
		{30 * time.Second, 600 * time.Millisecond, 0, []string{"a node has 500ms", "NodeTimeout"}},
		{30 * time.Second, 80 * time.Millisecond, 50 * time.Millisecond, []string{"a node has 50ms", "NodeTimeout"}},
	} {
		bubble(t, 3, func(t *testing.T, nodes []*fakeNode) {
			far(nodes, c.trip)
			s := newcomer(t, nodes)
			s.timeout = c.timeout
			req := ask("a")
			req.TTL = c.ttl
			var err error
			for range 3 { // the first one may have met no node
				_, err = s.Acquire(t.Context(), req)
				time.Sleep(2 * time.Second)
			}
			if !errors.Is(err, core.ErrUnavailable) {
				t.Fatalf("a lease of %v over %v: %v, want ErrUnavailable", c.ttl, c.trip, err)
			}
			for _, text := range c.want {
				if !strings.Contains(observe.RootCause(err).Error(), text) { // what logs have
					t.Errorf("the error does not say %q: %v", text, err)
				}
			}
		})
	}
}
