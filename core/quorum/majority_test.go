package quorum

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/driver"
	"github.com/interlock-go/interlock/core/observe"
)

func TestPlacesAndLeasesAboveMaxTTLAreMistakesAndNoOutage(t *testing.T) {
	s := storeOn(t, fakes(3))
	for name, req := range map[string]driver.AcquireRequest{
		"shared":    {Kind: driver.Shared, TTL: time.Second},
		"permit":    {Kind: driver.Permit, AtMost: 2, TTL: time.Second},
		"long":      {TTL: s.maxTTL + time.Millisecond},
		"both long": {Kind: driver.Shared, TTL: s.maxTTL + time.Millisecond},
	} {
		req.Key, req.Owner = "k", "a:1"
		rep, err := s.Acquire(t.Context(), req)
		if !errors.Is(err, driver.ErrConfig) || errors.Is(err, driver.ErrUnavailable) || rep.Granted || rep.Ambiguous {
			t.Errorf("%s: %+v, %v; want ErrConfig, and not ErrUnavailable", name, rep, err)
		}
	}
	if _, err := core.New(s, core.Watchdog(s.maxTTL+time.Millisecond)); !errors.Is(err, core.ErrConfig) {
		t.Errorf("core.New with a Watchdog above MaxTTL: %v, want ErrConfig", err)
	}
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
						wantReason(t, err, "nodes renewed the lease")
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

// wantReason wants an error of a quorum that has failed to say so to the log, which has the
// root cause.
func wantReason(t *testing.T, err error, text string) {
	t.Helper()
	if errors.Is(err, driver.ErrUnavailable) && !strings.Contains(observe.RootCause(err).Error(), text) {
		t.Errorf("the root cause is %q; want %q in it", observe.RootCause(err), text)
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
				wantReason(t, err, "the lock is gone from 2 of 5 nodes")
				for _, f := range nodes {
					f.set(func(f *fakeNode) { f.down = false })
				}
				wantFree(t, nodes, 2*time.Second) // the node that was down is freed as soon as it is back
			})
		})
	}
}

func TestOneReleaseWakesOnceOrTwice(t *testing.T) {
	bubble(t, 5, func(t *testing.T, nodes []*fakeNode) {
		s := storeOn(t, nodes)
		var got []string
		var mu sync.Mutex
		stop := s.watch("k", time.Now(), func(list driver.Waiters) {
			mu.Lock()
			defer mu.Unlock()
			got = append(got, string(list))
		})
		heard := func() []string {
			mu.Lock()
			defer mu.Unlock()
			all := got
			got = nil
			return all
		}
		say := func(i int, owner string, next driver.Waiters) {
			for _, wake := range nodes[i].watched {
				wake(owner, next)
			}
		}
		for i := range nodes {
			say(i, "x", []driver.Waiters{"a,b", "b,a", "a,b,c"}[i%3])
		}
		time.Sleep(2 * fewWait)
		// In the first's order, and then with who else waits.
		if all := heard(); strings.Join(all, " ") != "a,b,c" {
			t.Errorf("woken with %q", all)
		}
		say(0, "y", "b")
		if n := len(heard()); n != 0 {
			t.Errorf("the next release woke %d times before a majority has announced it", n)
		}
		time.Sleep(2 * fewWait)
		if all := heard(); strings.Join(all, " ") != "b" {
			t.Errorf("woken with %q after a while", all)
		}
		for i := range nodes[1:] {
			say(1+i, "y", []driver.Waiters{"b,c", "b"}[i%2])
		}
		time.Sleep(2 * fewWait)
		if all := heard(); strings.Join(all, " ") != "b,c" {
			t.Errorf("woken with %q by the majority", all)
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
