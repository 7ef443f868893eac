//go:build long && unix

package postgres_test

import (
	"database/sql"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/interlock-go/interlock/core/driver"
	"github.com/interlock-go/interlock/core/pgstore"
)

func TestManyGoroutinesShareStatements(t *testing.T) {
	db := lockTable(t)
	var j judge
	ctx := j.span(t, 3*time.Second, 1000)
	var all sync.WaitGroup
	for range 2 { // processes
		j.compete(ctx, t, &all, newLocker(t, newLocks(t, pool(t, dsnOf(t, db)))), 128, 64)
	}
	all.Wait()
	j.verdict(t, 1000)
}

// Requests of one owner each, on few keys, below the queues of package core: statements of
// several workers meet on the same rows.
func TestRequestsForTheSameKeysMeet(t *testing.T) {
	db := lockTable(t)
	var stores []*pgstore.Store
	for range 2 {
		stores = append(stores, newLocks(t, pool(t, dsnOf(t, db)), slowly))
	}
	var j judge
	ctx := j.span(t, 2*time.Second, 100)
	var all sync.WaitGroup
	for g := range 256 {
		s := stores[g%2]
		all.Go(func() {
			for n := 0; ctx.Err() == nil; n++ {
				key, owner := (g+n)%16, fmt.Sprintf("%d:%d", g, n)
				rep, err := s.Acquire(t.Context(), driver.AcquireRequest{Key: fmt.Sprint("k", key), Owner: owner, TTL: time.Minute})
				if err != nil || rep.Ambiguous {
					t.Errorf("Acquire: %+v, %v", rep, err)
				}
				if !rep.Granted {
					continue
				}
				j.section(key, rep.Token)
				if _, err := s.Release(t.Context(), driver.ReleaseRequest{
					Key: fmt.Sprint("k", key), Owner: owner, Token: rep.Token, Deadline: time.Now().Add(patience),
				}); err != nil {
					t.Errorf("Release: %v", err)
				}
			}
		})
	}
	all.Wait()
	j.verdict(t, 100)
}

// updates returns how many updates the table has seen, and how many of them touched no
// index.
func updates(t *testing.T, db *sql.DB) (all, hot int64) {
	t.Helper()
	if err := db.QueryRowContext(t.Context(), "SELECT n_tup_upd, n_tup_hot_upd FROM pg_stat_user_tables "+
		"WHERE relid = 'interlock_lock'::regclass").Scan(&all, &hot); err != nil {
		t.Fatal(err)
	}
	return all, hot
}

func TestUpdatesTouchNoIndex(t *testing.T) {
	db := lockTable(t)
	s := newLocks(t, db)
	const pairs, keys, goroutines = 5000, 1000, 8
	var all sync.WaitGroup
	for g := range goroutines {
		all.Go(func() {
			for n := g; n < pairs; n += goroutines {
				key, owner := fmt.Sprint("k", n%keys), fmt.Sprint("owner:", n)
				rep, err := s.Acquire(t.Context(), driver.AcquireRequest{Key: key, Owner: owner, TTL: time.Minute})
				if err != nil || !rep.Granted {
					t.Errorf("%+v, %v", rep, err)
					return
				}
				if _, err := s.Release(t.Context(), driver.ReleaseRequest{
					Key: key, Owner: owner, Token: rep.Token, Deadline: time.Now().Add(patience),
				}); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	all.Wait()
	var n, hot int64
	eventually(t, "the statistics have all updates", func() bool {
		n, hot = updates(t, db)
		return n >= 2*pairs-keys
	})
	share := float64(hot) / float64(n)
	t.Logf("%.2f %% of %d updates", 100*share, n)
	if share < 0.95 {
		t.Errorf("%.2f %% of the updates touched no index; want 95", 100*share)
	}
}

// A try that is refused, and has nothing to note, must not write: it would wait for the
// disk.
func TestARefusedTryWritesNothing(t *testing.T) {
	db := lockTable(t)
	s := newLocks(t, db)
	ask := func(owner, waiter string) driver.Reply {
		rep, err := s.Acquire(t.Context(), driver.AcquireRequest{Key: "k", Owner: owner, Waiter: waiter, TTL: time.Minute})
		if err != nil {
			t.Fatal(err)
		}
		return rep
	}
	ask("holder", "")
	ask("other", "w1")
	version := func() (v string) {
		if err := db.QueryRowContext(t.Context(), "SELECT xmin || ' ' || xmax || ' ' || ctid FROM interlock_lock WHERE key = 'k'").Scan(&v); err != nil {
			t.Fatal(err)
		}
		return v
	}
	before := version()
	for range 3 {
		if rep := ask("other", "w1"); rep.Granted || !rep.Listed || rep.Holder != "holder" {
			t.Errorf("%+v", rep)
		}
		if rep := ask("third", ""); rep.Granted || rep.Listed {
			t.Errorf("%+v", rep)
		}
	}
	s.Renew(t.Context(), []driver.Renewal{{Key: "k", Owner: "holder", Asked: true}}, func(_ int, contended bool, err error) {
		if !contended || err != nil {
			t.Errorf("contended %v, %v", contended, err)
		}
	})
	if after := version(); after != before {
		t.Errorf("the row was written: %s, then %s", before, after)
	}
}

func TestOldRowsAreDeletedAndTheirTokensAreNotReached(t *testing.T) {
	db := lockTable(t)
	s := newLocks(t, db, func(c *config) { c.Keep, c.Sweep = 100*time.Millisecond, 50*time.Millisecond })
	const n = 3000
	tokens := make([]int64, n)
	var all sync.WaitGroup
	take := func(i int, owner string, ttl time.Duration) int64 {
		rep, err := s.Acquire(t.Context(), driver.AcquireRequest{Key: fmt.Sprint("k", i), Owner: owner, TTL: ttl})
		if err != nil || !rep.Granted {
			t.Errorf("%d: %+v, %v", i, rep, err)
		}
		return rep.Token
	}
	for i := range n {
		all.Go(func() {
			ttl := time.Minute
			if i%2 == 0 {
				ttl = 10 * time.Millisecond // as if its holder had crashed
			}
			tokens[i] = take(i, "first", ttl)
			if i%2 == 1 && i > 1 {
				if _, err := s.Release(t.Context(), driver.ReleaseRequest{
					Key: fmt.Sprint("k", i), Owner: "first", Token: tokens[i], Deadline: time.Now().Add(patience),
				}); err != nil {
					t.Errorf("%d: %v", i, err)
				}
			}
		})
	}
	all.Wait()
	rows := 0
	eventually(t, "the old rows are deleted", func() bool {
		if err := db.QueryRowContext(t.Context(), "SELECT count(*) FROM interlock_lock").Scan(&rows); err != nil {
			t.Fatal(err)
		}
		return rows <= 2 // the lock that is held, and that of the sweep
	})
	for i := range 100 {
		if i == 1 {
			if rep, err := s.Acquire(t.Context(), driver.AcquireRequest{Key: "k1", Owner: "second", TTL: time.Minute}); err != nil || rep.Granted {
				t.Errorf("the lock that was held all the time: %+v, %v", rep, err)
			}
			continue
		}
		if token := take(i, "second", time.Minute); token <= tokens[i] {
			t.Errorf("token %d follows %d", token, tokens[i])
		}
	}
}

// Drivers keep statements prepared, and PostgreSQL keeps their plans. One that was made
// for a small table reads all of it.
func TestAGrowingTableIsReadByItsKeys(t *testing.T) {
	db := lockTable(t)
	session := pool(t, dsnOf(t, db))
	session.SetMaxOpenConns(1)
	s := newLocks(t, session)
	pairs := func(goroutines, each int, key func(g, n int) string) {
		var all sync.WaitGroup
		for g := range goroutines {
			all.Go(func() {
				for n := range each {
					k := key(g, n)
					if _, err := s.Acquire(t.Context(), driver.AcquireRequest{Key: k, Owner: "o", TTL: time.Minute}); err != nil {
						t.Errorf("Acquire: %v", err)
					}
					if _, err := s.Release(t.Context(), driver.ReleaseRequest{Key: k, Owner: "o", Deadline: time.Now().Add(patience)}); err != nil {
						t.Errorf("Release: %v", err)
					}
				}
			})
		}
		all.Wait()
	}
	// read is how many rows were read by going through the table. The statistics are the
	// session's own.
	read := func() (n int64) {
		for _, text := range []string{"SELECT pg_stat_force_next_flush()", "SELECT 1"} {
			if _, err := session.ExecContext(t.Context(), text); err != nil {
				t.Fatal(err)
			}
		}
		if err := session.QueryRowContext(t.Context(), "SELECT seq_tup_read FROM pg_stat_user_tables "+
			"WHERE relid = 'interlock_lock'::regclass").Scan(&n); err != nil {
			t.Fatal(err)
		}
		return n
	}
	few := func(g, _ int) string { return fmt.Sprint("few", g) }
	for range 2 {
		pairs(32, 10, few)
		pairs(1, 20, few)
		if _, err := db.ExecContext(t.Context(), "VACUUM ANALYZE interlock_lock"); err != nil {
			t.Fatal(err)
		}
	}
	small := read()
	if small == 0 {
		t.Error("a small table is read by its keys too: the test has gone blind")
	}
	pairs(64, 300, func(g, n int) string { return fmt.Sprint("many", g, ":", n) })
	time.Sleep(time.Second) // the size is looked at once a second
	pairs(1, 1, few)
	grown := read()
	pairs(64, 20, few)
	pairs(1, 20, few)
	if n := read() - grown; n != 0 {
		t.Errorf("%d rows were read by going through a table of 20,000", n)
	}
}
