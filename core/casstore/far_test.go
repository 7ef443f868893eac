package casstore_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/casstore"
	"github.com/interlock-go/interlock/core/casstore/castest"
)

// uses has processes with one caller each use a key for a time, and returns the grants of each, and the longest waits.
func uses(
	t *testing.T, ways []time.Duration, during time.Duration, opts func(i int) []core.Option,
) (counts []int, longest []time.Duration) {
	t.Helper()
	server := castest.NewMemory()
	var all sync.WaitGroup
	counts, longest = make([]int, len(ways)), make([]time.Duration, len(ways))
	begin := time.Now().Add(time.Second)
	end := begin.Add(during)
	for i, way := range ways {
		random := rand.New(rand.NewPCG(1, uint64(i))) //nolint:gosec // the same in each run
		store := open(t, &castest.Link{Server: server, Apart: true, Meet: func(*casstore.Txn) castest.Fault {
			return castest.Fault{Before: way, After: way}
		}})
		locker, err := core.New(store, core.Unlisted())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = locker.Close(context.Background()) })
		all.Go(func() {
			for time.Now().Before(end) {
				asked := time.Now()
				l, err := locker.Lock(t.Context(), "k", opts(i)...)
				if err != nil {
					t.Errorf("Lock: %v", err)
					return
				}
				if asked.After(begin) {
					longest[i] = max(longest[i], time.Since(asked))
				}
				time.Sleep(2*time.Millisecond + time.Duration(random.Int64N(int64(time.Millisecond))))
				if now := time.Now(); now.After(begin) && now.Before(end) {
					counts[i]++
				}
				if err := l.Release(t.Context()); err != nil {
					t.Errorf("Release: %v", err)
				}
			}
		})
	}
	all.Wait()
	return counts, longest
}

func TestAProcessTenMillisecondsAwayHasItsShare(t *testing.T) {
	for name, opts := range map[string]func(i int) []core.Option{
		"exclusive": func(int) []core.Option { return nil },
		"shared, and a far writer": func(i int) []core.Option {
			if i == 0 {
				return nil
			}
			return []core.Option{core.Shared()}
		},
		"1 permit":  func(int) []core.Option { return []core.Option{core.Permits(1)} },
		"2 permits": func(int) []core.Option { return []core.Option{core.Permits(2)} },
	} {
		for _, near := range []int{1, 3} {
			t.Run(fmt.Sprint(name, ", beside ", near), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					ways := append([]time.Duration{5 * time.Millisecond}, slices.Repeat([]time.Duration{500 * time.Microsecond}, near)...)
					counts, longest := uses(t, ways, 10*time.Second, opts)
					sum := 0
					for _, n := range counts[1:] {
						sum += n
					}
					share := float64(counts[0]) * float64(near) / float64(sum)
					t.Logf("grants %v, %.2f, longest waits %v", counts, share, longest)
				})
			})
		}
	}
}
