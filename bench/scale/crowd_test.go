//go:build long

package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/driver"
	"github.com/interlock-go/interlock/core/memstore"
)

// oneWay is how long the way between a process and the store takes: which process hears
// first of a release depends on there being one.
const oneWay = 100 * time.Microsecond

// bounded is a store in memory. Its list has room for as many processes as the lists of
// stores on servers.
type bounded struct {
	*memstore.Store

	mu     sync.Mutex
	listed map[string]bool // by the id of the process
	tries  atomic.Int64
}

// enters returns the name of a waiting process if the list has room for it.
func (s *bounded) enters(waiter driver.Waiter) driver.Waiter {
	if len(s.listed) < listRoom || s.listed[waiter.ID()] {
		return waiter
	}
	return ""
}

// carry carries a request out, a way off.
func (s *bounded) carry(request func()) {
	time.Sleep(oneWay)
	s.mu.Lock()
	request()
	s.mu.Unlock()
	time.Sleep(oneWay)
}

func (s *bounded) Acquire(ctx context.Context, ask driver.AcquireRequest) (rep driver.Reply, err error) {
	s.carry(func() {
		s.tries.Add(1)
		id := ask.Waiter.ID()
		ask.Waiter = s.enters(ask.Waiter)
		switch rep, err = s.Store.Acquire(ctx, ask); {
		case rep.Granted:
			delete(s.listed, id)
		case rep.Listed:
			s.listed[id] = true
		}
	})
	return rep, err
}

// Renew makes the taker of an offer the owner, which is in the list no more then.
func (s *bounded) Renew(ctx context.Context, batch []driver.Renewal, done func(i int, contended bool, err error)) {
	s.carry(func() {
		s.Store.Renew(ctx, batch, func(i int, contended bool, err error) {
			if err == nil {
				s.comes(batch[i].Owner)
			}
			done(i, contended, err)
		})
	})
}

// comes takes the process of an owner out of the list.
func (s *bounded) comes(owner string) {
	id, _, _ := strings.Cut(owner, ":")
	delete(s.listed, id)
}

func (s *bounded) Release(ctx context.Context, ask driver.ReleaseRequest) (found driver.Waiting, err error) {
	s.carry(func() {
		s.comes(ask.Owner) // it may have had an offer
		if len(s.listed) >= listRoom-1 {
			ask.Waiter = ""
		}
		if ask.Waiter != "" {
			s.listed[ask.Waiter.ID()] = true
		}
		found, err = s.Store.Release(ctx, ask)
	})
	return found, err
}

func (s *bounded) Decline(ctx context.Context, key, id string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.listed, id)
	return s.Store.Decline(ctx, key, id)
}

// Calls come a way later.
func (s *bounded) Calls(id string, hear func(driver.Call)) (stop func()) {
	return s.Store.Calls(id, func(c driver.Call) {
		go func() {
			time.Sleep(oneWay)
			hear(c)
		}()
	})
}

func (s *bounded) RoundTrip() time.Duration { return 2 * oneWay }

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
				store := &bounded{Store: memstore.New(), listed: map[string]bool{}}
				f, err := newFleet(t.Context(), c.processes, func() (core.Store, func() error, error) {
					return store, func() error { return nil }, nil
				})
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
				before := store.tries.Load()
				time.Sleep(rounds * time.Duration(c.processes) * c.turn)
				tries := float64(store.tries.Load() - before)
				got := make([]int64, len(grants))
				none := 0
				for p := range grants {
					if got[p] = grants[p].Load(); got[p] == 0 {
						none++
					}
				}
				slices.Sort(got)
				t.Logf("%d turns, %.1f tries each; %d got nothing, nine of ten at least %d, the median %d, the most %d",
					turns.Load(), tries/float64(turns.Load()), none, got[len(got)/10], got[len(got)/2], got[len(got)-1])
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
