//go:build integration

package redisstore_test

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/driver"
)

// A release calls the next lockers by name, so a grant costs as many bytes with many waiting processes
// as with four. A process is a locker with connections of its own, and one caller.
func TestAGrantCostsTheSameBytesHoweverManyProcessesWait(t *testing.T) {
	sent := map[int]float64{}
	for _, processes := range crowds {
		t.Run(fmt.Sprint(processes, " processes"), func(t *testing.T) {
			w := alone(t)
			grants, shares := 30*processes, make([]atomic.Int64, processes)
			var lockers []*core.Locker
			for range processes {
				lockers = append(lockers, w.process())
			}
			output := func() float64 {
				stats, err := w.rdb.Info(t.Context(), "stats").Result()
				_, rest, found := strings.Cut(stats, "total_net_output_bytes:")
				n, wrong := strconv.ParseFloat(strings.TrimSpace(strings.SplitN(rest, "\n", 2)[0]), 64)
				if err != nil || !found || wrong != nil {
					t.Fatal(stats, err, wrong)
				}
				return n
			}
			// contend has each process take and release the lock again and again, until so many grants.
			contend := func(until int64) {
				var all sync.WaitGroup
				var total atomic.Int64
				for i, l := range lockers {
					all.Go(func() {
						for total.Load() < until {
							lease, err := l.Lock(context.Background(), "k")
							if err != nil {
								t.Error(err)
								return
							}
							total.Add(1)
							shares[i].Add(1)
							w.release(lease)
						}
					})
				}
				all.Wait()
			}
			contend(int64(2 * processes)) // connections are made, and all wait in line
			for i := range shares {
				shares[i].Store(0)
			}
			before := output()
			contend(int64(grants))
			sent[processes] = (output() - before) / float64(grants)
			var each []int64
			for i := range shares {
				each = append(each, shares[i].Load())
			}
			t.Logf("%d processes: Redis sends %.0f bytes a grant; shares %d to %d of %d grants",
				processes, sent[processes], slices.Min(each), slices.Max(each), grants)
			if least := slices.Min(each); least < 10 {
				t.Errorf("a process had %d of %d grants; want at least a third of its share of 30", least, grants)
			}
		})
	}
	for processes, bytes := range sent {
		if bytes > 1100 {
			t.Errorf("%d processes: Redis sends %.0f bytes a grant; want 1100 at most", processes, bytes)
		}
	}
}

// A release calls five lockers. It says how many wait, so that the releasing process knows how long the turns of the
// others are.
func TestAReleaseSaysHowManyWait(t *testing.T) {
	t.Parallel()
	w := alone(t)
	s := w.store()
	for _, own := range []driver.Waiter{"", driver.NewWaiter(strings.Repeat("f", 32), driver.Exclusive, time.Millisecond)} {
		key := fmt.Sprint("k", own)
		token := w.take(s, w.held(key, "a:1")).Token
		const others = 40
		for i := range others {
			ask := w.held(key, fmt.Sprintf("%032x:1", i))
			ask.Waiter = driver.NewWaiter(fmt.Sprintf("%032x", i), driver.Exclusive, time.Millisecond)
			if rep := w.acquire(s, ask); !rep.Listed {
				t.Fatalf("%+v; want a place in the list", rep)
			}
		}
		found, err := s.Release(t.Context(), driver.ReleaseRequest{Key: key, Owner: "a:1", Token: token, TTL: w.Holds(), Waiter: own, Deadline: w.deadline()})
		if err != nil || found.Others != others {
			t.Errorf("the release finds %+v, %v; want %d others", found, err, others)
		}
	}
}
