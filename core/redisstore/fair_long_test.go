//go:build integration && long

package redisstore_test

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// Where each process has many callers, a process has its turn by its place in the list.
// Where each has one caller, who wants the lock again at once, each release is a race between
// the processes that get the announcement: a process that was not named in a release must not
// be put off by each next release.
func TestEachProcessGetsItsShareOfAHotKey(t *testing.T) {
	for _, c := range []struct {
		processes, callers int
		work               time.Duration
		sections           int64
		least, most        float64 // of an equal share
	}{
		{4, 64, 0, 500_000, 1. / 2, 2}, // a second or two
		{8, 1, 0, 4000, 1. / 8, 8},     // half a second; in less, one pause of the scheduler decides
		{8, 1, time.Millisecond, 800, 1. / 8, 8},
		{8, 1, 3 * time.Millisecond, 800, 1. / 8, 8},
	} {
		t.Run(fmt.Sprint(c.processes, " processes with ", c.callers, " callers, ", c.work), func(t *testing.T) {
			w := alone(t)
			shares := make([]atomic.Int64, c.processes)
			var total, inside atomic.Int64
			var all sync.WaitGroup
			start := make(chan struct{})
			for i := range c.processes {
				l := w.process()
				w.release(w.lock(l, "warm"))
				for range c.callers {
					all.Go(func() {
						<-start
						for total.Add(1) <= c.sections {
							lease, err := l.Lock(context.Background(), "k")
							if err != nil {
								t.Error(err)
								return
							}
							if inside.Add(1) != 1 {
								t.Error("two are inside")
							}
							if c.work > 0 {
								<-time.After(c.work)
							}
							shares[i].Add(1)
							inside.Add(-1)
							w.release(lease)
						}
					})
				}
			}
			close(start)
			all.Wait()
			equal := float64(c.sections) / float64(c.processes)
			for i := range shares {
				n := float64(shares[i].Load())
				t.Logf("process %d: %v sections", i, n)
				if n < c.least*equal || n > c.most*equal {
					t.Errorf("process %d had %v of %d sections", i, n, c.sections)
				}
			}
		})
	}
}
