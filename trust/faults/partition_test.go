//go:build long && unix

package faults

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/internal/redistest"
	"github.com/interlock-go/interlock/trust/internal/faultnet"
)

// The holder is cut off from Redis, silently and in both directions, a hundred
// times. Each time its context must have ended when the next one is granted.
func TestPartitionOfTheHolder(t *testing.T) {
	s := stage(t)
	srv := redistest.Start(t)
	const (
		rounds, atOnce = 100, 20
		lease          = 1500 * time.Millisecond
	)
	next := s.locker(srv.Client(t))
	var mu sync.Mutex
	var contexts, trusts []time.Duration
	var void int
	round := func(proxy *faultnet.Proxy, holder *core.Locker, key string) error {
		held, err := patiently(holder, key, new(atomic.Int64))
		if err != nil {
			return err
		}
		over, control := make(chan time.Time, 1), make(chan struct{})
		context.AfterFunc(held.Context(), func() { over <- time.Now() })
		proxy.Cut()
		defer proxy.Mend()
		// A machine that is too busy to run a timer of the test's own runs none of
		// the watchdog's either. Such a round shows nothing about the context.
		deadline := held.Deadline()
		time.AfterFunc(time.Until(deadline)+lease/200, func() { close(control) })
		theirs, err := patiently(next, key, new(atomic.Int64))
		granted, runs := time.Now(), false
		select {
		case <-control:
			runs = held.Deadline().Equal(deadline) // else it was renewed before the cut
		default:
		}
		if err != nil {
			return err
		}
		if held.Err() == nil {
			t.Errorf("%s: another is granted while the one that is cut off trusts its lease", key)
		}
		if runs && held.Context().Err() == nil {
			t.Errorf("%s: another is granted while the context of the one that is cut off goes on", key)
		}
		ended := <-over
		s.wantErr(context.Cause(held.Context()), core.ErrLost)
		if theirs.Token() <= held.Token() {
			t.Errorf("%s: token %d after %d", key, theirs.Token(), held.Token())
		}
		mu.Lock()
		if runs {
			contexts, trusts = append(contexts, granted.Sub(ended)), append(trusts, granted.Sub(held.Deadline()))
		} else {
			void++
		}
		mu.Unlock()
		s.wantErr(held.Release(context.Background()), core.ErrLost)
		return release(theirs)
	}
	enough := func() bool {
		mu.Lock()
		defer mu.Unlock()
		return len(trusts) >= rounds || void > 3*rounds
	}
	var wg sync.WaitGroup
	for w := range atOnce {
		proxy := faultnet.NewProxy(t, srv.Addr())
		holder := s.locker(srv.Client(t, proxy.Through), core.Watchdog(lease))
		wg.Go(func() {
			for i := 0; i < rounds/atOnce || !enough(); i++ {
				if err := round(proxy, holder, fmt.Sprintf("k%d-%d", w, i)); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	slices.Sort(contexts)
	slices.Sort(trusts)
	n := len(trusts)
	if n < rounds {
		t.Fatalf("%d rounds of %d, and %d in which no timer ran in time", n, rounds, void)
	}
	t.Logf("%d rounds (and %d in which the machine ran no timer in time): leases of %v ended before the next grant by %v at least, %v in the median, %v at most; a goroutine that waited for the context ran %v before at least, %v in the median",
		n, void, lease, trusts[0], trusts[n/2], trusts[n-1], contexts[0], contexts[n/2])
	s.clean(srv)
}
