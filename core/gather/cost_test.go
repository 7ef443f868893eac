package gather_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/gather"
	"github.com/interlock-go/interlock/core/memstore"
	"github.com/interlock-go/interlock/internal/testkit"
)

// allOps are the requests of locks.
var allOps = []memstore.Op{memstore.Acquire, memstore.Renew, memstore.Release, memstore.Stand, memstore.Decline}

// cost returns the requests and the allocations of a call, when it has been called often.
func cost(t *testing.T, store *memstore.Store, call func(key string)) (requests string, allocations float64) {
	t.Helper()
	for i := range 100 {
		call(fmt.Sprint("k", i%10))
	}
	before := map[memstore.Op]int{}
	for _, op := range allOps {
		before[op] = store.Requests(op)
	}
	const runs = 200
	i := 0
	keys := []string{"k0", "k1", "k2", "k3"}
	allocations = testing.AllocsPerRun(runs, func() {
		i++
		call(keys[i%len(keys)])
	})
	for _, op := range allOps {
		requests += fmt.Sprint(float64(store.Requests(op)-before[op])/(runs+1), " ")
	}
	return requests, allocations
}

func TestABatchOfOneCostsWhatALockCosts(t *testing.T) {
	testkit.LogTo(t)
	for name, opts := range map[string][]core.Option{
		"without options":         nil,
		"with a wait and MaxHold": {core.Wait(time.Minute), core.MaxHold(time.Minute)},
	} {
		t.Run(name, func(t *testing.T) {
			plain, gathered := memstore.New(), memstore.New()
			locker := testkit.LockerOn(t, plain)
			lockRequests, lockAllocations := cost(t, plain, func(key string) {
				lease, err := locker.Lock(t.Context(), key, opts...)
				if err != nil {
					t.Fatal(err)
				}
				if err := lease.Release(t.Context()); err != nil {
					t.Fatal(err)
				}
			})
			results := []int{7}
			var all []gather.Option
			for _, o := range opts {
				all = append(all, o)
			}
			group := gather.New(testkit.LockerOn(t, gathered), func(context.Context, string, []int) ([]int, error) { return results, nil }, all...)
			requests, allocations := cost(t, gathered, func(key string) {
				if got, err := group.Do(t.Context(), key, 1); got != 7 || err != nil {
					t.Fatal(got, err)
				}
			})
			if requests != lockRequests {
				t.Errorf("requests (Acquire, Renew, Release, Stand, Decline): %s; want those of a lock, %s", requests, lockRequests)
			}
			// Under the race detector a pool drops some of its items.
			if allocations > lockAllocations && !raceDetector {
				t.Errorf("%v allocations; want at most those of a lock, %v", allocations, lockAllocations)
			}
			if n := group.Lines(); n != 0 {
				t.Errorf("the group remembers %d idle keys; want none", n)
			}
		})
	}
}

// A process with a long queue gives the lock away at the end of its turn, as without batches.
func TestABusyProcessLetsOthersHaveTheirTurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		testkit.LogTo(t)
		store := memstore.New()
		var mu sync.Mutex
		var order []string
		process := func(name string) *gather.Group[int, int] {
			return gather.New(testkit.LockerOn(t, store), func(_ context.Context, _ string, batch []int) ([]int, error) {
				time.Sleep(4 * time.Millisecond)
				mu.Lock()
				defer mu.Unlock()
				order = append(order, name)
				return batch, nil
			})
		}
		ctx, stop := context.WithCancel(t.Context())
		var callers sync.WaitGroup
		run := func(group *gather.Group[int, int], n int) {
			for range n {
				callers.Go(func() {
					for ctx.Err() == nil {
						if _, err := group.Do(ctx, "k", 1); err != nil && ctx.Err() == nil {
							t.Error(err)
						}
					}
				})
			}
		}
		run(process("busy"), 100)
		run(process("quiet"), 1)
		time.Sleep(2 * time.Second)
		stop()
		callers.Wait()
		longest, row, turns := 0, 0, 0
		for i, name := range order {
			if name == "busy" {
				row++
				longest = max(longest, row)
				continue
			}
			if row = 0; i > 0 && order[i-1] == "busy" {
				turns++
			}
		}
		// A turn of 20 ms has at most 6 sections of 4 ms.
		if longest > 7 || turns < 40 {
			t.Errorf("the busy process had up to %d sections in a row, and the other %d turns; want at most 7, and at least 40 turns", longest, turns)
		}
	})
}

func TestAThousandKeysAndCallersLeaveNothingBehind(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		testkit.LogTo(t)
		group := gather.New(testkit.Locker(t), gather.Each(func(_ context.Context, _ string, item int) (int, error) {
			time.Sleep(time.Millisecond)
			return item, nil
		}))
		var all sync.WaitGroup
		for i := range 1000 {
			for range 3 {
				all.Go(func() {
					if got, err := group.Do(t.Context(), fmt.Sprint("k", i), i); got != i || err != nil {
						t.Errorf("%d, %v; want %d", got, err, i)
					}
				})
			}
			all.Go(func() {
				ctx, leave := context.WithTimeout(t.Context(), time.Duration(i)*10*time.Microsecond)
				defer leave()
				_, _ = group.Do(ctx, fmt.Sprint("k", i%7), i)
			})
		}
		all.Wait()
		if n := group.Lines(); n != 0 {
			t.Errorf("the group remembers %d keys without callers; want none", n)
		}
	})
}
