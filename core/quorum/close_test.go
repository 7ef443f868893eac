package quorum

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/interlock-go/interlock/core"
)

// The vote of a slow node for a lock that has ended already comes after Close was
// called: no other process would ever take it back.
func TestCloseLeavesNoLateVoteBehind(t *testing.T) {
	const late = 100 * time.Millisecond
	slow := func(f *fakeNode) { f.latency = late }
	quick := func(f *fakeNode) { f.latency = 100 * time.Microsecond }
	for name, end := range map[string]func(t *testing.T, s *Store, nodes []*fakeNode){
		"for a lock that was released": func(t *testing.T, s *Store, nodes []*fakeNode) {
			nodes[4].set(slow)
			rep := acquire(t, s, "a")
			nodes[4].set(quick)
			free(t, s, "a", rep.Token)
		},
		"for a lock that was refused": func(t *testing.T, s *Store, nodes []*fakeNode) {
			for _, f := range nodes[:4] {
				f.hold("k", "b", 1, lease)
			}
			nodes[4].set(slow)
			if rep := acquire(t, s, "a"); rep.Holder != "b" {
				t.Errorf("reply %+v", rep)
			}
		},
		"whose withdrawal is slow": func(t *testing.T, s *Store, nodes []*fakeNode) {
			rep := acquire(t, s, "a")
			synctest.Wait()
			nodes[4].set(slow)
			free(t, s, "a", rep.Token)
		},
		"whose withdrawal was lost": func(t *testing.T, s *Store, nodes []*fakeNode) {
			rep := acquire(t, s, "a")
			synctest.Wait()
			nodes[4].set(func(f *fakeNode) { f.down = true })
			free(t, s, "a", rep.Token)
			time.Sleep(2 * time.Second) // it is not tried any more, and owed
			nodes[4].set(func(f *fakeNode) { f.down = false })
		},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, 5, func(t *testing.T, nodes []*fakeNode) {
				s := storeOn(t, nodes)
				end(t, s, nodes)
				if err := s.Close(); err != nil {
					t.Error(err)
				}
				for i, f := range nodes {
					if f.holder("k") == "a" {
						t.Errorf("node %d holds the vote after Close", i)
					}
				}
				time.Sleep(2 * late)
				for i, f := range nodes {
					if f.holder("k") == "a" {
						t.Errorf("node %d votes after Close", i)
					}
				}
			})
		})
	}
}

func TestCloseWaitsNoLongerThanANodeHas(t *testing.T) {
	for name, gone := range map[string]func(*fakeNode){
		"down":   func(f *fakeNode) { f.down = true },
		"silent": func(f *fakeNode) { f.silent = true },
		"deaf":   func(f *fakeNode) { f.deaf = true },
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, 5, func(t *testing.T, nodes []*fakeNode) {
				s := storeOn(t, nodes)
				acquire(t, s, "a")
				nodes[1].set(gone)
				nodes[3].set(gone)
				free(t, s, "a", 0)
				acquire(t, s, "b")
				begin := time.Now()
				_ = s.Close()
				// Once for the requests under way, once for the debts.
				if took := time.Since(begin); took > 2*mostBudget+10*time.Millisecond {
					t.Errorf("Close took %v", took)
				}
				if _, err := s.Acquire(t.Context(), ask("c")); !errors.Is(err, core.ErrUnavailable) {
					t.Errorf("after Close: %v, want ErrUnavailable", err)
				} else {
					wantReason(t, err, "closed")
				}
				if err := s.Close(); err != nil {
					t.Error("a second Close:", err)
				}
			})
		})
	}
}
