//go:build integration && unix

package postgres_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/driver"
	"github.com/interlock-go/interlock/core/pgstore"
)

// waits are the ways to notice a release for the processes of a test.
var waits = map[string]func(dsn string) []pgstore.Option{
	"looking": func(string) []pgstore.Option { return nil },
	"hearing": func(dsn string) []pgstore.Option { return []pgstore.Option{pgstore.Listen(listener{dsn})} },
	"deaf":    func(string) []pgstore.Option { return []pgstore.Option{pgstore.Listen(deaf{})} },
}

func TestAWaitEndsWithTheReleaseAndNotWithTheLease(t *testing.T) {
	for name, way := range waits {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db, dsn := tables(t)
			var lockers []*core.Locker
			for range 2 {
				store := newStore(t, connect(t, dsn), way(dsn)...)
				lockers = append(lockers, newLocker(t, store, core.Watchdog(measured(t).Holds())))
			}
			aWaitEnds(t, db, lockers)
		})
	}
}

// aWaitEnds has one locker release a lock that the other waits for, soon and later.
func aWaitEnds(t *testing.T, db querier, lockers []*core.Locker) {
	t.Helper()
	for _, hold := range []time.Duration{0, 700 * time.Millisecond} {
		key := fmt.Sprint("held for ", hold)
		lease, err := lockers[0].Lock(t.Context(), key)
		if err != nil {
			t.Fatal(err)
		}
		got := make(chan error, 1)
		go func() {
			lease, err := lockers[1].Lock(t.Context(), key)
			if err == nil {
				err = lease.Release(t.Context())
			}
			got <- err
		}()
		since := time.Now()
		eventually(t, "the other process waits, and looks less often", func() bool {
			return waitersOf(t, db, key) == 1 && time.Since(since) >= hold
		})
		if err := lease.Release(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := receive(t, "the wait ends", got); err != nil {
			t.Error(err)
		}
		if time.Now().After(lease.Deadline()) {
			t.Errorf("held for %v: the wait ended when the lease would have", hold)
		}
	}
}

// waitersOf counts the lockers in the list of a key.
func waitersOf(t *testing.T, db querier, key string) int {
	t.Helper()
	return read[int](t, db, "SELECT coalesce(max(json_array_length(record::json->'waiting')), 0) FROM interlock_lock WHERE key = $1::bytea", []byte(key))
}

// listOf returns the list of a key.
func listOf(t *testing.T, db querier, key string) string {
	t.Helper()
	return read[string](t, db, "SELECT string_agg(w->>'name', ',' ORDER BY n) FROM interlock_lock,"+
		" json_array_elements(record::json->'waiting') WITH ORDINALITY e (w, n) WHERE key = $1::bytea", []byte(key))
}

// A process that dies in its place of the list costs the others a moment once, and not
// their places.
func TestADeadLockerLosesItsTurn(t *testing.T) {
	t.Parallel()
	db, _ := tables(t)
	s := newStore(t, db)
	var key string
	ask := func(owner, waiter string) driver.Reply {
		t.Helper()
		return takeAs(t, s, driver.AcquireRequest{Key: key, Owner: owner, Waiter: driver.Waiter(waiter)})
	}
	release := func(owner, waiter string) {
		t.Helper()
		if _, err := s.Release(t.Context(), driver.ReleaseRequest{Key: key, Owner: owner, Waiter: driver.Waiter(waiter), Deadline: soon(t)}); err != nil {
			t.Fatal(err)
		}
	}
	const turn = 320 * time.Millisecond // of the letter m, see driver.Waiter
	queue := func() error {
		ask("o1", "")
		for _, w := range []string{"dead~m", "w2~m", "w3~m"} {
			if rep := ask("of "+w, w); !rep.Listed {
				t.Fatalf("%s is not listed: %+v", w, rep)
			}
		}
		release("o1", "w1~m")
		last := ask("o1 again", "w1~m")
		if last.Granted || !last.Listed || last.Holder != "" || last.TTL <= 0 || last.TTL > 3*turn {
			return fmt.Errorf("the releasing locker is before the others: %+v", last)
		}
		if second := ask("of w2", "w2~m"); second.Granted || second.TTL <= 0 || second.TTL >= last.TTL {
			return fmt.Errorf("the second in the list asks again after %+v, the last after %v", second, last.TTL)
		}
		return nil
	}
	// On a busy machine the turn of the first in the list may have ended before the others
	// have asked.
	for n := 0; ; n++ {
		key = fmt.Sprint("k", n)
		begin := time.Now()
		err := queue()
		if err == nil {
			break
		}
		if took := time.Since(begin); took < turn || n == 100 {
			t.Fatalf("within %v: %v", took, err)
		}
	}
	eventually(t, "the second in the list has its turn", func() bool { return ask("of w2", "w2~m").Granted })
	if list := listOf(t, db, key); list != "w3~m,w1~m" {
		t.Errorf("behind the second wait %q; want w3~m,w1~m", list)
	}
	release("of w2", "")
	if rep := ask("of w3", "w3~m"); !rep.Granted {
		t.Errorf("the first in the list is refused: %+v", rep)
	}
}

func TestAFullListTakesNoMore(t *testing.T) {
	t.Parallel()
	db, _ := tables(t)
	s := newStore(t, db)
	listed := 0
	for i := range 130 {
		rep := takeAs(t, s, driver.AcquireRequest{Key: "k", Owner: fmt.Sprint("o", i), Waiter: driver.Waiter(fmt.Sprint("w", i))})
		if rep.Listed {
			listed++
		}
	}
	if n := waitersOf(t, db, "k"); listed != 120 || n != 120 {
		t.Errorf("%d are said to be listed, %d are", listed, n)
	}
}

// The process that holds a lock is killed: nothing but the end of its lease says so.
func TestTheLockOfAKilledHolderIsFoundFree(t *testing.T) {
	t.Parallel()
	db, _ := tables(t)
	s := newStore(t, db)
	limits := measured(t)
	lease := limits.Lapses()
	// On a machine that stands still the lease may end before the waiter asks.
	var key string
	eventually(t, "a waiter finds the lock held", func() bool {
		key = fmt.Sprint(lease)
		takeAs(t, s, driver.AcquireRequest{Key: key, Owner: "killed", TTL: lease})
		lease *= 2
		return !takeAs(t, s, driver.AcquireRequest{Key: key, Owner: "o", Waiter: "w"}).Granted
	})
	woken := make(chan driver.Call, 100)
	defer s.Calls("w", func(c driver.Call) { woken <- c })()
	if c := receive(t, "the waiting are told", woken); c.What == driver.Turn && c.In != 0 {
		t.Errorf("%+v; want its turn, at once", c)
	}
	// They are notified once: the store has looked again when another lease has ended.
	takeAs(t, s, driver.AcquireRequest{Key: "later", Owner: "killed", TTL: limits.Lapses()})
	later := make(chan driver.Call, 100)
	takeAs(t, s, driver.AcquireRequest{Key: "later", Owner: "o", Waiter: "w2"})
	defer s.Calls("w2", func(c driver.Call) { later <- c })()
	receive(t, "the end of the later lease is told", later)
	if n := len(woken); n != 0 {
		t.Errorf("they were told %d times more", n)
	}
	if rep := takeAs(t, s, driver.AcquireRequest{Key: key, Owner: "o", Waiter: "w"}); !rep.Granted {
		t.Errorf("%+v", rep)
	}
}
