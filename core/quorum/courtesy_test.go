package quorum

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/interlock-go/interlock/core/driver"
)

// The next caller of the process that has released the lock lets those go first whom the nodes have called. If
// they do not come, it has the lock soon.
func TestAProcessLetsThoseGoFirstWhoWereCalled(t *testing.T) {
	for name, c := range map[string]struct {
		others, listed bool
		least          time.Duration
	}{
		"others wait":                     {true, false, minCourtesy},
		"no other waits":                  {false, false, 0},
		"it is in line behind the others": {true, true, 0},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, 3, func(t *testing.T, nodes []*fakeNode) {
				s, other := storeOn(t, nodes), storeOn(t, nodes)
				if rep, err := s.Acquire(t.Context(), ask("a:1")); err != nil || !rep.Granted {
					t.Fatalf("%+v, %v; want a grant", rep, err)
				}
				if c.others {
					waits := ask("b:1")
					waits.Waiter = "b"
					if rep, err := other.Acquire(t.Context(), waits); err != nil || rep.Granted {
						t.Fatalf("%+v, %v; want a refusal", rep, err)
					}
				}
				time.Sleep(time.Second) // all nodes have answered
				release := driver.ReleaseRequest{Key: "k", Owner: "a:1", TTL: lease}
				if c.listed {
					release.Waiter = "a"
				}
				if _, err := s.Release(t.Context(), release); err != nil {
					t.Fatal(err)
				}
				began := time.Now()
				gone, leave := context.WithCancel(t.Context())
				leave()
				late := make(chan error, 1)
				left := ask("a:2")
				left.Late = func(_ driver.Reply, err error) { late <- err }
				if _, err := s.Acquire(gone, left); c.least > 0 && (!errors.Is(err, driver.ErrPending) || !errors.Is(<-late, driver.ErrNotReady)) {
					t.Errorf("a caller that leaves in the pause gets %v; want ErrPending, and then ErrNotReady", err)
				}
				rep, err := s.Acquire(t.Context(), ask("a:3"))
				if c.least == 0 {
					return // it may meet the request of the caller that has left
				}
				if err != nil || !rep.Granted {
					t.Fatalf("%+v, %v; want a grant", rep, err)
				}
				if asked := rep.Sent.Sub(began); asked < c.least || asked > courtesy {
					t.Errorf("it asks %v after the release; want between %v and %v", asked, c.least, courtesy)
				}
				time.Sleep(time.Second)
				s.pauses.mu.Lock()
				defer s.pauses.mu.Unlock()
				if n := len(s.pauses.until); n != 0 {
					t.Errorf("%d pauses are kept; want none", n)
				}
			})
		})
	}
}
