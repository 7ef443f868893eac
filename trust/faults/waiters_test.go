//go:build long && unix

package faults

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/internal/redistest"
)

func TestAThousandWaitersAndOneRelease(t *testing.T) {
	s := stage(t)
	srv := redistest.Start(t)
	rdb := srv.Client(t)
	const processes, each = 4, 250
	held := s.must(s.locker(rdb, core.Unlisted()), "k")
	ctx, cancel := context.WithCancel(t.Context())
	granted := make(chan *core.Lease, processes*each)
	var others atomic.Int64
	var wg sync.WaitGroup
	var lockers []*core.Locker
	for range processes {
		l := s.locker(rdb, core.Unlisted())
		lockers = append(lockers, l)
		for range each {
			wg.Go(func() {
				lease, err := l.Lock(ctx, "k")
				switch {
				case err == nil:
					granted <- lease
				case errors.Is(err, context.Canceled):
					others.Add(1)
				default:
					t.Error(err)
				}
			})
		}
	}
	redistest.Eventually(t, soon, func(ctx context.Context) error {
		for _, l := range lockers {
			if h := l.Held(); len(h) != 1 || h[0].Waiters != each {
				return fmt.Errorf("waiting: %+v", h)
			}
		}
		if n := len(rdb.PubSubChannels(ctx, "interlock:wanted:*").Val()); n < processes {
			return fmt.Errorf("%d processes listen", n)
		}
		if q := rdb.HGet(ctx, "interlock:{k}", "q").Val(); len(q) < processes*32 {
			return fmt.Errorf("in the list: %q", q)
		}
		return nil
	})
	srv.ResetStats(t)
	s.release(held)
	next := <-granted
	// The first in the list tries, the second after it before it learns that it was too late,
	// and perhaps the others: not each of the thousand.
	calls := srv.Calls(t)["evalsha"]
	t.Logf("one release and the grant after it: %d requests", calls)
	if calls > 1+2*processes {
		t.Errorf("one release cost %d requests", calls)
	}
	cancel()
	wg.Wait()
	if n := others.Load() + int64(len(granted)); n != processes*each-1 {
		t.Errorf("%d waiters are accounted for", n)
	}
	if len(granted) > 0 {
		t.Errorf("one release, %d holders", 1+len(granted))
	}
	s.release(next)
	s.clean(srv)
}
