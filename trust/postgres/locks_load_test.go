//go:build long && unix

package postgres_test

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/interlock-go/interlock/core/driver"
	"github.com/interlock-go/interlock/core/pgstore"
	"github.com/interlock-go/interlock/trust/internal/pgtest"
)

// Requests of one owner each, on few keys, below the queues of package core: statements of
// several workers meet on the same rows.
func TestRequestsForTheSameKeysMeet(t *testing.T) {
	t.Parallel()
	_, dsn := tables(t)
	var j judge
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var all sync.WaitGroup
	for range 2 { // processes
		s := newStore(t, connect(t, dsn))
		for g := range 128 {
			all.Go(func() {
				for n := 0; ctx.Err() == nil; n++ {
					key, owner := fmt.Sprint("k", (g+n)%16), fmt.Sprintf("%p:%d:%d", s, g, n)
					rep := takeAs(t, s, driver.AcquireRequest{Key: key, Owner: owner})
					if rep.Ambiguous {
						t.Errorf("Acquire: %+v", rep)
					}
					if !rep.Granted {
						continue
					}
					j.section(key, rep.Token, func() bool { return true })
					if err := free(t, s, key, owner); err != nil {
						t.Errorf("Release: %v", err)
					}
				}
			})
		}
	}
	j.more(t, "the locks are used", 2000)
	cancel()
	all.Wait()
	j.verdict(t)
}

// The process that releases a lock is the first to know. It must not take the lock again
// before the others, however late those look.
func TestProcessesTakeTurns(t *testing.T) {
	for name, way := range waits {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, dsn := tables(t)
			var all sync.WaitGroup
			var j judge
			var shares [3]atomic.Int64
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			for p := range shares {
				l := newLocker(t, newStore(t, connect(t, dsn), way(dsn)...))
				for range 4 {
					all.Go(func() {
						for ctx.Err() == nil {
							lease, err := l.Lock(ctx, "hot")
							if err != nil {
								continue
							}
							j.section("hot", lease.Token(), func() bool { return lease.Err() == nil })
							shares[p].Add(1)
							for h := l.Held(); ctx.Err() == nil && len(h) > 0 && h[0].Held && h[0].Waiters == 0; h = l.Held() {
								runtime.Gosched() // the others are to ask meanwhile
							}
							_ = lease.Release(ctx)
						}
					})
				}
			}
			// A process that starves has no share later either.
			eventually(t, "no process starves", func() bool {
				got := []int64{shares[0].Load(), shares[1].Load(), shares[2].Load()}
				return j.sections.Load() >= 300 && slices.Min(got)*10 >= slices.Max(got)
			})
			cancel()
			all.Wait()
			j.verdict(t)
		})
	}
}

func TestOldRowsAreDeletedAndTheirTokensAreNotReached(t *testing.T) {
	t.Parallel()
	db, dsn := tables(t)
	s := newStore(t, db)
	const n = 3000
	tokens := make([]int64, n)
	var all sync.WaitGroup
	for i := range n {
		all.Go(func() {
			ask := driver.AcquireRequest{Key: fmt.Sprint("k", i), Owner: "first"}
			if i%2 == 0 {
				ask.TTL = 10 * time.Millisecond // as if its holder had crashed
			}
			tokens[i] = takeAs(t, s, ask).Token
			if i%2 == 1 && i > 1 {
				if err := free(t, s, ask.Key, "first"); err != nil {
					t.Errorf("%d: %v", i, err)
				}
			}
		})
	}
	all.Wait()
	sweeper := newStore(t, connect(t, dsn), pgstore.KeepTokens(100*time.Millisecond), pgstore.SweepEvery(50*time.Millisecond))
	take(t, sweeper, "k1", "third") // it sweeps the table of locks from its first request on
	eventually(t, "the old rows are deleted", func() bool {
		// The lock that is held stays, and the lock of the sweep.
		return read[int](t, db, "SELECT count(*) FROM interlock_lock") <= 2
	})
	for i := range 100 {
		rep := take(t, s, fmt.Sprint("k", i), "second")
		if i == 1 {
			if rep.Granted {
				t.Errorf("the lock that was held all the time: %+v", rep)
			}
		} else if !rep.Granted || rep.Token <= tokens[i] {
			t.Errorf("%+v; the token before was %d", rep, tokens[i])
		}
	}
}

// Drivers keep statements prepared, and PostgreSQL keeps their plans. A plan that was made
// for a small table reads all of it.
func TestAGrowingTableIsReadByItsKeys(t *testing.T) {
	t.Parallel()
	db, dsn := tables(t)
	session := connect(t, dsn)
	session.SetMaxOpenConns(1)
	s := newStore(t, session)
	pairs := func(goroutines, each int, key func(g, n int) string) {
		var all sync.WaitGroup
		for g := range goroutines {
			all.Go(func() {
				for n := range each {
					k := key(g, n)
					take(t, s, k, "o")
					if err := free(t, s, k, "o"); err != nil {
						t.Errorf("Release: %v", err)
					}
				}
			})
		}
		all.Wait()
	}
	// seen is how many rows were read by going through the table. The statistics are the
	// session's own.
	seen := func() int64 {
		execute(t, session, "SELECT pg_stat_force_next_flush()")
		execute(t, session, "SELECT 1")
		return read[int64](t, session, "SELECT seq_tup_read FROM pg_stat_user_tables WHERE relid = 'interlock_lock'::regclass")
	}
	few := func(g, _ int) string { return fmt.Sprint("few", g) }
	for range 2 {
		pairs(32, 10, few)
		pairs(1, 20, few)
		execute(t, db, "VACUUM ANALYZE interlock_lock")
	}
	if seen() == 0 {
		t.Error("a small table is read by its keys too: the test has gone blind")
	}
	pairs(64, 300, func(g, n int) string { return fmt.Sprint("many", g, ":", n) })
	eventually(t, "the new size is looked at", func() bool {
		before := seen()
		pairs(1, 1, few)
		return seen() == before
	})
	grown := seen()
	pairs(64, 20, few)
	pairs(1, 20, few)
	if n := seen() - grown; n != 0 {
		t.Errorf("%d rows were read by going through a table of 20,000", n)
	}
}

// churnFlag is for how long TestChurn goes on.
var churnFlag = flag.Duration("churn", 5*time.Second, "`duration` of TestChurn")

// TestChurn takes and releases locks of many keys, and looks at the rows that remain in the
// table.
//
//	go test -tags=integration,long -v -run Churn -timeout 0 ./postgres -args -churn 1h
func TestChurn(t *testing.T) {
	db := pgtest.Start(t).Open(t)
	s := newStore(t, db)
	migrate(t, s)
	l := newLocker(t, s)
	size := func() int64 {
		t.Helper()
		return read[int64](t, db, "SELECT pg_total_relation_size('interlock_lock')")
	}
	var pairs, failed atomic.Int64
	var failure atomic.Pointer[error]
	work := func(d time.Duration) {
		ctx, cancel := context.WithTimeout(t.Context(), d)
		defer cancel()
		var all sync.WaitGroup
		for range 8 {
			all.Go(func() {
				for ctx.Err() == nil {
					lease, err := l.Lock(t.Context(), fmt.Sprint("k", rand.IntN(1000)))
					if err == nil {
						err = lease.Release(t.Context())
					}
					if err != nil { // a machine with other work can be late once in an hour
						failure.Store(&err)
						failed.Add(1)
						continue
					}
					pairs.Add(1)
				}
			})
		}
		all.Wait()
	}
	work(*churnFlag / 5) // until all keys have rows
	begin := size()
	work(*churnFlag)
	end := size()
	updates := func() (all, hot int64) {
		t.Helper()
		const text = " FROM pg_stat_user_tables WHERE relid = 'interlock_lock'::regclass"
		return read[int64](t, db, "SELECT n_tup_upd"+text), read[int64](t, db, "SELECT n_tup_hot_upd"+text)
	}
	var all, hot int64
	// Sessions report their statistics a second later. A release of each pair is an update.
	eventually(t, "the updates are counted", func() bool {
		all, hot = updates()
		return all >= pairs.Load()
	})
	share := 100 * float64(hot) / float64(all)
	t.Logf("%d pairs, %d updates, %.2f %% of them HOT, table with index %d kB, then %d kB", pairs.Load(), all, share, begin>>10, end>>10)
	if n := failed.Load(); n > 0 {
		t.Logf("%d more failed, the last with: %v", n, *failure.Load())
	}
	if failed.Load()*1000 > pairs.Load()+20_000 { // a stall of the machine fails some at once
		t.Error("more than a thousandth failed, and 20")
	}
	if share < 95 {
		t.Errorf("%.1f %% of the updates touched no index; want 95", share)
	}
	if end > 2*begin+1<<20 {
		t.Errorf("the table has grown from %d to %d bytes", begin, end)
	}
}
