package casstore_test

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/casstore"
	"github.com/interlock-go/interlock/core/casstore/castest"
)

// crowd has some processes, each with one caller, take turns with one key. When all are in line it
// counts grants and transactions for a time. Each way to the server takes a millisecond.
func crowd(t *testing.T, server *castest.Memory, processes int, hold, during time.Duration, opts ...core.Option) (grants, transactions int) {
	t.Helper()
	each := crowdOf(t, server, processes, hold, during, func(int) []core.Option { return opts })
	for _, n := range each.grants {
		grants += n
	}
	return grants, each.transactions
}

// turns are what a crowd has counted: the grants of each process.
type turns struct {
	grants       []int
	transactions int
}

// crowdOf is crowd with the options of each process.
func crowdOf(
	t *testing.T, server *castest.Memory, processes int, hold, during time.Duration, opts func(i int) []core.Option,
) (counted turns) {
	t.Helper()
	var all sync.WaitGroup
	granted := make([]int, processes)
	begin := time.Now().Add(2 * time.Second)
	end, before, after := begin.Add(during), 0, 0
	all.Go(func() {
		time.Sleep(time.Until(begin))
		before = server.Commits()
		time.Sleep(time.Until(end))
		after = server.Commits()
	})
	for i := range processes {
		locker := start(t, server, core.Unlisted())
		all.Go(func() {
			for time.Now().Before(end) {
				l, err := locker.Lock(t.Context(), "k", opts(i)...)
				if err != nil {
					t.Errorf("Lock: %v", err)
					return
				}
				time.Sleep(hold)
				if now := time.Now(); now.After(begin) && !now.After(end) {
					granted[i]++
				}
				if err := l.Release(t.Context()); err != nil {
					t.Errorf("Release: %v", err)
				}
			}
		})
	}
	all.Wait()
	return turns{granted, after - before}
}

// An owner of a place wrote the entry of the lock, as all others did, and a release woke all that waited. And releases
// that knew an old line left permits unused, or two processes handed one to each other.
func TestAPlaceCostsFewRequestsAtAnyNumberOfProcesses(t *testing.T) {
	const processes, hold, during, trip = 48, 40 * time.Millisecond, 4 * time.Second, 2 * time.Millisecond
	for name, kind := range map[string]struct {
		opts    func(i int) []core.Option
		permits int
	}{
		"shared": {opts: func(int) []core.Option { return []core.Option{core.Shared()} }},
		"shared, and a writer": {opts: func(i int) []core.Option {
			if i == 0 {
				return nil
			}
			return []core.Option{core.Shared()}
		}},
		"4 permits":  {func(int) []core.Option { return []core.Option{core.Permits(4)} }, 4},
		"16 permits": {func(int) []core.Option { return []core.Option{core.Permits(16)} }, 16},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				counted := crowdOf(t, castest.NewMemory(), processes, hold, during, kind.opts)
				grants, least, most := 0, slices.Min(counted.grants), slices.Max(counted.grants)
				for _, n := range counted.grants {
					grants += n
				}
				each := float64(counted.transactions) / float64(grants)
				t.Logf("%d grants, %.1f transactions a grant, %d to %d of a process", grants, each, least, most)
				if each > 5.5 || least == 0 {
					t.Errorf("%.1f transactions a grant, and %d grants to one process; want 5.5 at most, and some to each", each, least)
				}
				if share := grants / processes; kind.permits > 0 && most > 2*share {
					t.Errorf("%d grants to one process of %d; want twice its share of %d at most", most, processes, share)
				}
				if all := kind.permits * int(during/(hold+2*trip)); grants < all*8/10 { // two trips from one owner to the next
					t.Errorf("%d grants; want 80%% of the %d that there are if no permit is ever unused", grants, all)
				}
			})
		})
	}
}

// Every release woke all processes that waited, and each of them asked.
func TestAGrantCostsFewRequestsAtAnyNumberOfProcesses(t *testing.T) {
	for _, processes := range []int{24, 48} {
		t.Run(fmt.Sprint(processes), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				server := castest.NewMemory()
				n, transactions := crowd(t, server, processes, time.Millisecond, 2*time.Second)
				if most := 6 * n; transactions > most || n < 200 {
					t.Errorf("%d transactions for %d grants; want 6 a grant at most, and 200 grants at least", transactions, n)
				}
				t.Logf("%d processes: %d grants, %.1f transactions a grant", processes, n, float64(transactions)/float64(n))
			})
		})
	}
}

// A process 60 ms away lost its turns, since it comes late for each: it had 0.03 to 0.22 of its share.
func TestAProcessFarAwayHasItsShareOfTheGrants(t *testing.T) {
	for _, processes := range []int{4, 24} {
		t.Run(fmt.Sprint(processes), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				server := castest.NewMemory()
				var all sync.WaitGroup
				counts := make([]int, processes)
				end := time.Now().Add(20 * time.Second)
				for i := range processes {
					way := 500 * time.Microsecond
					if i == 0 {
						way = 30 * time.Millisecond
					}
					store := open(t, &castest.Link{Server: server, Lags: true, Meet: func(*casstore.Txn) castest.Fault {
						return castest.Fault{Before: way, After: way}
					}})
					locker, err := core.New(store, core.Unlisted())
					if err != nil {
						t.Fatal(err)
					}
					for range 4 { // so that the process always waits
						all.Go(func() {
							for time.Now().Before(end) {
								if err := locker.Do(t.Context(), "k", func(context.Context) error {
									time.Sleep(time.Millisecond)
									counts[i]++
									return nil
								}); err != nil {
									t.Errorf("Do: %v", err)
									return
								}
							}
						})
					}
					t.Cleanup(func() { _ = locker.Close(context.Background()) })
				}
				all.Wait()
				sum := 0
				for _, n := range counts[1:] {
					sum += n
				}
				share := float64(counts[0]) * float64(processes-1) / float64(sum)
				t.Logf("%d processes: grants %v; the first, which is 60 ms away, has %.2f of the share of another", processes, counts, share)
				if share < 0.7 {
					t.Errorf("the process 60 ms away has %.2f of the share of another; want 0.7 at least", share)
				}
			})
		})
	}
}
