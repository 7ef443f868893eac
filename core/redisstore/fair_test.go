package redisstore_test

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/internal/redistest"
)

// TestNobodyStarvesWhereEachProcessHasOneCaller has lockers with one caller each,
// who wants the lock again as soon as it has given it up. None of them ever hands
// over within its process, so that every release is a race with those who hear of
// it. One that was not named in a release must not be put off by every next one.
func TestNobodyStarvesWhereEachProcessHasOneCaller(t *testing.T) {
	const lockers = 8
	for _, work := range []time.Duration{0, time.Millisecond, 3 * time.Millisecond} {
		sections := int64(800)
		if work == 0 {
			sections = 4000 // half a second; in less, one pause of the scheduler decides
		}
		t.Run(fmt.Sprint(work), func(t *testing.T) {
			srv := redistest.Start(t)
			all := make([]*core.Locker, lockers)
			for i := range all {
				all[i] = newLocker(t, srv.Client(t))
			}
			var shares [lockers]atomic.Int64
			var total atomic.Int64
			var wg sync.WaitGroup
			for i, l := range all {
				wg.Go(func() {
					for total.Add(1) <= sections {
						lease, err := l.Lock(context.Background(), "k")
						if err != nil {
							t.Error(err)
							return
						}
						if work > 0 {
							<-time.After(work)
						}
						shares[i].Add(1)
						if err := lease.Release(context.Background()); err != nil {
							t.Error(err)
						}
					}
				})
			}
			wg.Wait()
			var got [lockers]int64
			for i := range shares {
				got[i] = shares[i].Load()
			}
			t.Logf("shares: %d", got)
			for i, n := range got {
				if n < sections/lockers/8 {
					t.Errorf("locker %d got %d of %d sections", i, n, sections)
				}
			}
		})
	}
}
