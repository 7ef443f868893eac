//go:build long && unix

package postgres_test

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/driver"
)

// waits are the ways in which the processes of a test hear of a release.
var waits = map[string]func(dsn string) func(*config){
	"looking": func(string) func(*config) { return func(*config) {} },
	"hearing": func(dsn string) func(*config) {
		return func(c *config) { c.Listen = listener{dsn} }
	},
	// As behind a pooler in transaction mode.
	"deaf": func(string) func(*config) { return func(c *config) { c.Listen = deaf{} } },
}

// deaf listens, and hears nothing.
type deaf struct{}

func (deaf) Listen(ctx context.Context, _ string, _ func(string), state func(bool)) error {
	state(true)
	<-ctx.Done()
	return ctx.Err()
}

func TestAWaitEndsSoonAfterTheRelease(t *testing.T) {
	for name, way := range waits {
		t.Run(name, func(t *testing.T) {
			db := lockTable(t)
			var lockers []*core.Locker
			for range 2 {
				lockers = append(lockers, newLocker(t, newLocks(t, pool(t, dsnOf(t, db)), slowly, way(dsnOf(t, db)))))
			}
			for _, hold := range []time.Duration{0, 30 * time.Millisecond, 700 * time.Millisecond} {
				key := fmt.Sprint("held for ", hold)
				lease, err := lockers[0].Lock(t.Context(), key)
				if err != nil {
					t.Fatal(err)
				}
				got := make(chan time.Time)
				go func() {
					lease, err := lockers[1].Lock(t.Context(), key)
					if err != nil {
						t.Errorf("Lock: %v", err)
					} else if err := lease.Release(t.Context()); err != nil {
						t.Errorf("Release: %v", err)
					}
					got <- time.Now()
				}()
				eventually(t, "the other process waits", func() bool { return waitersOf(t, db, key) == 1 })
				time.Sleep(hold)
				released := time.Now()
				if err := lease.Release(t.Context()); err != nil {
					t.Fatal(err)
				}
				took := (<-got).Sub(released)
				t.Logf("held for %v: the wait ended after %v", hold, took)
				if took > 10*time.Second { // by its end alone the lease takes 30 s
					t.Errorf("held for %v: the wait ended %v after the release", hold, took)
				}
			}
		})
	}
}

// waitersOf counts the lockers in the list of a key.
func waitersOf(t *testing.T, db querier, key string) (n int) {
	t.Helper()
	if err := db.QueryRowContext(t.Context(),
		"SELECT coalesce(max(cardinality(waiters)), 0) FROM interlock_lock WHERE key = $1::bytea", []byte(key)).Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

// The process that releases a lock is the first to know. It must not take the lock again
// before the others, however late those look.
func TestProcessesTakeTurns(t *testing.T) {
	for name, way := range waits {
		t.Run(name, func(t *testing.T) {
			const processes = 3
			db := lockTable(t)
			var all sync.WaitGroup
			var j judge
			var shares [processes]atomic.Int64
			counts := func() (got []int64) {
				for p := range shares {
					got = append(got, shares[p].Load())
				}
				return got
			}
			starving := func(got []int64) bool { return slices.Min(got)*10 < slices.Max(got) }
			// On a busy machine one process can sleep through seconds. One that starves has no
			// share after a minute either.
			ctx := span(t, 3*time.Second, func() bool { return j.sections.Load() >= 100 && !starving(counts()) })
			for p := range processes {
				l := newLocker(t, newLocks(t, pool(t, dsnOf(t, db)), slowly, way(dsnOf(t, db))))
				for range 4 {
					all.Go(func() {
						for ctx.Err() == nil {
							lease, err := l.Lock(ctx, "hot")
							if err != nil {
								continue
							}
							j.section(0, lease.Token())
							shares[p].Add(1)
							time.Sleep(time.Millisecond)
							_ = lease.Release(ctx)
						}
					})
				}
			}
			all.Wait()
			j.verdict(t, 100)
			got := counts()
			t.Logf("shares %v", got)
			if starving(got) {
				t.Errorf("the processes got %v sections: one of them starves", got)
			}
		})
	}
}

// A process that dies in its place of the list costs the others a moment once, and not
// their places.
func TestADeadLockerLosesItsTurn(t *testing.T) {
	db := lockTable(t)
	s := newLocks(t, db)
	var key string
	ask := func(owner, waiter string) driver.Reply {
		t.Helper()
		rep, err := s.Acquire(t.Context(), driver.AcquireRequest{Key: key, Owner: owner, Waiter: waiter, TTL: time.Minute})
		if err != nil {
			t.Fatal(err)
		}
		return rep
	}
	free := func(owner, waiter string) {
		t.Helper()
		if _, err := s.Release(t.Context(), driver.ReleaseRequest{Key: key, Owner: owner, Waiter: waiter, Deadline: time.Now().Add(patience)}); err != nil {
			t.Fatal(err)
		}
	}
	var second driver.Reply
	queue := func() error {
		ask("o1", "")
		for _, w := range []string{"dead", "w2", "w3"} {
			if rep := ask("of "+w, w); !rep.Listed {
				t.Fatalf("%s is not listed: %+v", w, rep)
			}
		}
		free("o1", "w1")
		rep := ask("o1 again", "w1")
		if rep.Granted || !rep.Listed || rep.Holder != "" || rep.TTL <= 0 || rep.TTL > time.Second {
			return fmt.Errorf("the releasing locker is before the others: %+v", rep)
		}
		second = ask("of w2", "w2")
		if second.Granted || second.TTL <= 0 || second.TTL >= rep.TTL {
			return fmt.Errorf("the second in the list asks again after %+v, the last after %v", second, rep.TTL)
		}
		return nil
	}
	// The turn of the first in the list is at least 60 ms. On a busy machine it may be over
	// before the others have asked.
	for n, end := 0, time.Now().Add(patience); ; n++ {
		key = fmt.Sprint("k", n)
		begin := time.Now()
		err := queue()
		if err == nil {
			break
		}
		if took := time.Since(begin); took < 60*time.Millisecond || time.Now().After(end) {
			t.Fatalf("within %v: %v", took, err)
		}
	}
	time.Sleep(second.TTL + 2*time.Millisecond)
	if rep := ask("of w2", "w2"); !rep.Granted {
		t.Fatalf("the second in the list does not have its turn: %+v", rep)
	}
	var list string
	if err := db.QueryRowContext(t.Context(), "SELECT array_to_string(waiters, ',') FROM interlock_lock WHERE key = $1::bytea", []byte(key)).Scan(&list); err != nil {
		t.Fatal(err)
	}
	if list != "w3,w1" {
		t.Errorf("behind the second wait %q; want w3,w1", list)
	}
	free("of w2", "")
	if rep := ask("of w3", "w3"); !rep.Granted {
		t.Errorf("the first in the list is refused: %+v", rep)
	}
}

func TestAFullListTakesNoMore(t *testing.T) {
	db := lockTable(t)
	s := newLocks(t, db)
	listed := 0
	for i := range 70 {
		rep, err := s.Acquire(t.Context(), driver.AcquireRequest{
			Key: "k", Owner: fmt.Sprint("o", i), Waiter: fmt.Sprint("w", i), TTL: time.Minute,
		})
		if err != nil {
			t.Fatal(err)
		}
		if rep.Listed {
			listed++
		}
	}
	if listed != 63 || waitersOf(t, db, "k") != 63 {
		t.Errorf("%d are said to be listed, %d are", listed, waitersOf(t, db, "k"))
	}
}

func TestALostLeaseWakesTheWaiting(t *testing.T) {
	db := lockTable(t)
	s := newLocks(t, db, slowly)
	if rep, err := s.Acquire(t.Context(), driver.AcquireRequest{Key: "k", Owner: "crashed", TTL: 10 * time.Second}); err != nil || !rep.Granted {
		t.Fatalf("%+v, %v", rep, err)
	}
	if rep, err := s.Acquire(t.Context(), driver.AcquireRequest{Key: "k", Owner: "o", Waiter: "w", TTL: time.Minute}); err != nil || rep.Granted {
		t.Fatalf("%+v, %v", rep, err)
	}
	woken := make(chan driver.Signal, 100)
	defer s.Watch("k", time.Now(), func(signal driver.Signal) { woken <- signal })()
	select {
	case signal := <-woken:
		if signal.Next != "w" {
			t.Errorf("%+v; want the list", signal)
		}
	case <-time.After(patience):
		t.Fatal("a lease is over, and the waiting are not told")
	}
	time.Sleep(time.Second)
	if n := len(woken); n != 0 {
		t.Errorf("they were told %d times more", n)
	}
}

func TestADeafListenerIsNoticed(t *testing.T) {
	db := lockTable(t)
	var log said
	s := newLocks(t, db, func(c *config) { c.Listen, c.Log = deaf{}, log.logger() })
	defer s.Watch("k", time.Now(), func(driver.Signal) {})()
	eventually(t, "the log says that nothing is heard", func() bool { return log.count("announcements are not heard") == 1 })
}
