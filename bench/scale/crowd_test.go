//go:build long

package main

import (
	"context"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// TestEachOfTwoHundredProcessesGetsItsTurn has three times as many processes want one
// key as its list has room for, in fake time and for five rounds of turns. By chance
// none or one process gets nothing. Two of three got nothing when a process that
// released went back into a full list, and all processes that it left out asked at once.
func TestEachOfTwoHundredProcessesGetsItsTurn(t *testing.T) {
	const rounds, unlucky = 5, 8
	for _, c := range []struct {
		workload
		turn time.Duration // about
	}{
		{workload{processes: 200, callers: 1, keys: 1, hold: time.Millisecond}, 1500 * time.Microsecond},
		{workload{processes: 200, callers: 1, keys: 1, hold: 10 * time.Millisecond}, 10500 * time.Microsecond},
		{workload{processes: 200, callers: 2, keys: 1, hold: time.Millisecond}, 20500 * time.Microsecond},
	} {
		t.Run(fmt.Sprintf("%d callers, %v", c.callers, c.hold), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				servers := newCluster(1)
				f, err := newFleet(t.Context(), c.processes, servers.open)
				if err != nil {
					t.Fatal(err)
				}
				grants := make([]atomic.Int64, c.processes)
				var last, turns atomic.Int64 // turns: grants to another process than before
				ctx, stop := context.WithCancel(t.Context())
				for p, l := range f.lockers {
					for range c.callers {
						go func() {
							for {
								lease, err := l.Lock(ctx, "k")
								if err != nil {
									return
								}
								if last.Swap(int64(p)) != int64(p) {
									turns.Add(1)
								}
								grants[p].Add(1)
								time.Sleep(c.hold)
								_ = lease.Release(context.Background())
							}
						}()
					}
				}
				time.Sleep(2 * time.Duration(c.processes) * c.turn) // not the first rounds
				for p := range grants {
					grants[p].Store(0)
				}
				turns.Store(0)
				before := servers.counted()
				time.Sleep(rounds * time.Duration(c.processes) * c.turn)
				did := servers.counted().minus(before)
				got := make([]int64, len(grants))
				none := 0
				for p := range grants {
					if got[p] = grants[p].Load(); got[p] == 0 {
						none++
					}
				}
				slices.Sort(got)
				t.Logf("%d turns, %.0f commands each; %d got nothing, nine of ten at least %d, the median %d, the most %d",
					turns.Load(), did.commands/float64(turns.Load()), none, got[len(got)/10], got[len(got)/2], got[len(got)-1])
				if none > unlucky {
					t.Errorf("%d of %d processes got nothing in %d rounds", none, len(got), rounds)
				}
				stop()
				if err := f.stop(context.Background()); err != nil {
					t.Error(err)
				}
			})
		})
	}
}
