package casstore_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/casstore"
	"github.com/interlock-go/interlock/core/casstore/castest"
	"github.com/interlock-go/interlock/core/driver"
)

// machine is a process with a locker: a network that can be cut, in a bubble.
type machine struct {
	*core.Locker
	store *casstore.Store
	cut   atomic.Bool
	next  atomic.Pointer[castest.Fault] // of the next transaction that writes
}

// start starts a process. Its locker is closed at the end of the test.
func start(t *testing.T, server *castest.Memory, opts ...core.LockerOption) *machine {
	t.Helper()
	m := &machine{}
	m.store = open(t, &castest.Link{Server: server, Lags: true, Meet: func(txn *casstore.Txn) castest.Fault {
		if txn != nil && len(txn.Then) > 0 {
			if next := m.next.Swap(nil); next != nil {
				return *next
			}
		}
		return castest.Fault{Before: time.Millisecond, After: time.Millisecond, Lost: m.cut.Load()}
	}}, casstore.Logger(slog.New(slog.DiscardHandler)))
	locker, err := core.New(m.store, opts...)
	if err != nil {
		t.Fatal(err)
	}
	m.Locker = locker
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		_ = locker.Close(ctx)
	})
	return m
}

func (m *machine) lock(t *testing.T, key string, opts ...core.Option) *core.Lease {
	t.Helper()
	lease, err := m.Lock(t.Context(), key, opts...)
	if err != nil {
		t.Fatal(err)
	}
	return lease
}

// A process gives signs of life for one lock. Another lock of its, that core does not renew
// any more, is free after its lease all the same, and not before core has ended it.
func TestALockThatIsNotRenewedIsGivenUp(t *testing.T) {
	for name, part := range map[string]struct {
		hold func(t *testing.T, m *machine) *core.Lease
		ends time.Duration // after what time it is free, at most
	}{
		"after MaxHold": {
			func(t *testing.T, m *machine) *core.Lease { return m.lock(t, "k", core.MaxHold(time.Minute)) }, 100 * time.Second,
		},
		"a fixed lease": {
			func(t *testing.T, m *machine) *core.Lease { return m.lock(t, "k", core.TTL(lease)) }, 31 * time.Second,
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				server := castest.NewMemory()
				a, b := start(t, server), start(t, server)
				renewed := a.lock(t, "renewed")
				held := part.hold(t, a)
				begin := time.Now()
				next := b.lock(t, "k")
				if held.Err() == nil {
					t.Error("two processes have the lock")
				}
				if took := time.Since(begin); took > part.ends {
					t.Errorf("the lock was free after %v", took)
				}
				if err := renewed.Err(); err != nil {
					t.Errorf("the lock that is renewed: %v", err)
				}
				if next.Token() <= held.Token() {
					t.Errorf("token %d follows %d", next.Token(), held.Token())
				}
			})
		})
	}
}

func TestALockThatIsHeldWhileItsLockerClosesIsGivenUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := castest.NewMemory()
		a, b := start(t, server), start(t, server)
		a.lock(t, "k")
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := a.Close(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Close: %v", err)
		}
		begin := time.Now()
		b.lock(t, "k")
		if took := time.Since(begin); took > lease+time.Second {
			t.Errorf("the lock was free after %v", took)
		}
	})
}

// A process that waits knows when the holder gave its last sign of life.
func TestTheLockOfACrashedHolderIsTakenOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := castest.NewMemory()
		a, b := start(t, server), start(t, server)
		a.lock(t, "k")
		for range 20 {
			got := make(chan time.Time, 1)
			go func() {
				b.lock(t, "k")
				got <- time.Now()
			}()
			time.Sleep(5*time.Minute + 7*time.Second)
			crash := time.Now()
			a.cut.Store(true)
			if took := (<-got).Sub(crash); took < lease*6/10 || took > lease*103/100 {
				t.Errorf("the lock was taken over %v after the crash", took)
			}
			a, b = b, start(t, server)
		}
	})
}

// Hand-overs in a process have separate tokens, until the store has to give new ones.
func TestTokensGrowOverManyHandOvers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := castest.NewMemory()
		a := start(t, server)
		var last atomic.Int64
		var all sync.WaitGroup
		for range 4 {
			all.Go(func() {
				for range 40_000 {
					l := a.lock(t, "k")
					if before := last.Swap(l.Token()); before >= l.Token() {
						t.Errorf("token %d follows %d", l.Token(), before)
						return
					}
					_ = l.Release(t.Context())
				}
			})
		}
		all.Wait()
		if next := start(t, server).lock(t, "k"); next.Token() <= last.Load() {
			t.Errorf("token %d of another process follows %d", next.Token(), last.Load())
		}
	})
}

// An idle holder of many locks and a process that waits ask for nothing but once a third of
// the lease.
func TestIdleProcessesAskLittle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := castest.NewMemory()
		a, b := start(t, server), start(t, server)
		for _, key := range strings.Split("abcdefghijklmnopqrstuvwxyz", "") {
			a.lock(t, key)
		}
		const leases = 40
		time.Sleep(lease)
		before := server.Commits()
		time.Sleep(leases * lease)
		idle := server.Commits() - before
		if idle > 3*leases*106/100+8 { // a renewal may go a little earlier than due; and there are sweeps
			t.Errorf("a process that holds 26 locks: %d transactions in %d leases", idle, leases)
		}
		ctx, cancel := context.WithCancel(t.Context())
		left := make(chan error)
		go func() {
			_, err := b.Lock(ctx, "a")
			left <- err
		}()
		time.Sleep(lease)
		before = server.Commits()
		time.Sleep(leases * lease)
		if n := server.Commits() - before - idle; n > 3*leases {
			t.Errorf("a process that waits: %d transactions in %d leases", n, leases)
		}
		cancel()
		if err := <-left; !errors.Is(err, context.Canceled) {
			t.Errorf("Lock: %v", err)
		}
		time.Sleep(time.Second)
		for _, e := range server.Entries() {
			if strings.Contains(e.Name, "/a/lock/") {
				t.Errorf("a caller has left, and its process waits still: %s", e.Name)
			}
		}
	})
}

// A pair of lock and release is two transactions.
func TestAPairIsTwoTransactions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := castest.NewMemory()
		a := start(t, server, core.Unlisted())
		for range 100 {
			_ = a.lock(t, "k").Release(t.Context())
		}
		if n := server.Commits(); n != 200 {
			t.Errorf("%d transactions for 100 pairs", n)
		}
	})
}

// A locker comes to the key of a dead holder while a sweep takes the holder out, and leaves. The next sweep has to find
// the key again.
func TestASweepComesBackToAKeyThatHasChangedUnderIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := castest.NewMemory()
		dead, comer := start(t, server), locker{open(t, server), t, "comer"}
		changed := false
		sweeper := open(t, &castest.Link{Server: server, Meet: func(txn *casstore.Txn) (f castest.Fault) {
			if txn == nil || changed || !slices.Contains(txn.Then, casstore.Op{Name: "interlock/k/lock", Delete: true}) {
				return f
			}
			changed = true
			comer.ask()
			if err := comer.Decline(t.Context(), "k", "comer"); err != nil {
				t.Error(err)
			}
			return f
		}})
		dead.lock(t, "k")
		if _, err := sweeper.Acquire(t.Context(), driver.AcquireRequest{Key: "other", Owner: "s:1", TTL: lease}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		dead.cut.Store(true)
		time.Sleep(3 * time.Hour)
		if left := named(server, "/k/"); !changed || len(left) > 0 {
			t.Errorf("%+v are left, changed is %v; want that the second sweep deletes what the first could not", left, changed)
		}
	})
}

// A sweep deletes the entries of dead processes, and no entry of a living one.
func TestASweepDeletesWhatTheDeadHaveLeft(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := castest.NewMemory()
		a, b, c := start(t, server), start(t, server), start(t, server)
		a.lock(t, "orphaned")
		b.lock(t, "held")
		long := c.lock(t, "long", core.TTL(5*time.Hour))
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		go func() { _, _ = a.Lock(ctx, "held") }()
		time.Sleep(time.Minute)
		a.cut.Store(true)
		time.Sleep(4 * time.Hour)
		if err := long.Err(); err != nil {
			t.Errorf("a long lease: %v", err)
		}
		var left []string
		for _, e := range server.Entries() {
			left = append(left, strings.TrimPrefix(e.Name, "interlock/"))
		}
		found := strings.Join(left, " ")
		for part, want := range map[string]bool{
			"orphaned/lock": false, "held/lock/": false, "held/lock": true, "long/lock": true, "/30000": true,
		} {
			if strings.Contains(found, part) != want {
				t.Errorf("%s: %v; of %q", part, !want, found)
			}
		}
		if n := strings.Count(found, ":beat"); n != 2 {
			t.Errorf("%d beats: %s", n, found)
		}
	})
}

// A lock that could not be deleted is found by the next sweep: by the beat of its holder.
func TestASweepThatFailsIsDoneAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := castest.NewMemory()
		a := start(t, server)
		a.lock(t, "orphaned")
		failed := 0
		store := open(t, &castest.Link{Server: server, Meet: func(txn *casstore.Txn) castest.Fault {
			for i := range txn.Then {
				if txn.Then[i].Delete && strings.HasSuffix(txn.Then[i].Name, "orphaned/lock") && failed < 1 {
					failed++
					return castest.Fault{Unsent: true}
				}
			}
			return castest.Fault{}
		}}, casstore.Logger(slog.New(slog.DiscardHandler)))
		if _, err := store.Acquire(t.Context(), driver.AcquireRequest{Key: "k", Owner: "o", TTL: lease}); err != nil {
			t.Fatal(err)
		}
		a.cut.Store(true)
		time.Sleep(4 * time.Hour)
		if left := named(server, "orphaned/lock"); len(left) > 0 || failed == 0 {
			t.Errorf("after %d failures there is %+v", failed, left)
		}
	})
}

// Lockers that have died in line do not come for their turns.
func TestALongListOfLockersThatHaveDiedGoes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := castest.NewMemory()
		a, b := start(t, server, core.Unlisted()), open(t, server)
		held := a.lock(t, "k")
		for i := range 100 {
			died := driver.NewWaiter(fmt.Sprint("died", i), driver.Exclusive, 100*time.Millisecond)
			reply, err := b.Acquire(t.Context(), driver.AcquireRequest{Key: "k", Owner: fmt.Sprint("o", i), TTL: lease, Waiter: died})
			if err != nil || !reply.Listed {
				t.Fatalf("the locker %d: %+v, %v; want that it is listed", i, reply, err)
			}
		}
		_ = held.Release(t.Context())
		began := time.Now()
		held = a.lock(t, "k")
		if took := time.Since(began); took > 2*time.Second {
			t.Errorf("the lock is had %v after its release; want that four lockers have their time of 100 ms", took)
		}
		_ = held.Release(t.Context())
		time.Sleep(time.Second)
		for _, e := range named(server, "/k/line") {
			if strings.Contains(e.Value, "died") {
				t.Errorf("lockers that have died are listed: %.200s", e.Value)
			}
		}
	})
}

// A resource that has seen tokens of Redis takes the tokens of a service that has moved, and what
// deletes old fences by their time leaves them.
func TestTokensAreAboveAllTimes(t *testing.T) {
	store := open(t, castest.NewMemory())
	reply, err := store.Acquire(t.Context(), driver.AcquireRequest{Key: "k", Owner: "o", TTL: lease})
	if err != nil || !reply.Granted {
		t.Fatalf("%+v, %v", reply, err)
	}
	if year := time.UnixMicro(reply.Token).Year(); year < 2100 {
		t.Errorf("token %d is a time in the year %d", reply.Token, year)
	}
}

// unready is a server that takes no transactions for a time; then it takes for a while none
// that only releases.
type unready struct {
	casstore.Server
	ready, releases time.Time
}

func (u *unready) Commit(ctx context.Context, txn casstore.Txn) (casstore.Answer, error) {
	takes := false
	for _, op := range txn.Then {
		takes = takes || !op.Delete && strings.HasSuffix(op.Name, "/lock")
	}
	if now := time.Now(); now.Before(u.ready) || !takes && now.Before(u.releases) {
		return casstore.Answer{}, driver.ErrNotReady
	}
	return u.Server.Commit(ctx, txn)
}

// An acquire of which nothing was sent for longer than its lease leaves its owner free to ask
// again.
func TestAnOwnerThatAsksAgainKeepsWhatItGets(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begin := time.Now()
		store := open(t, &unready{Server: castest.NewMemory(), ready: begin.Add(3 * time.Second), releases: begin.Add(3500 * time.Millisecond)})
		ask := driver.AcquireRequest{Key: "k", Owner: "o", TTL: 2 * time.Second}
		reply, err := store.Acquire(t.Context(), ask)
		if !errors.Is(err, driver.ErrNotReady) || reply.Ambiguous {
			t.Fatalf("%+v, %v", reply, err)
		}
		time.Sleep(time.Until(begin.Add(3 * time.Second)))
		if reply, err = store.Acquire(t.Context(), ask); !reply.Granted {
			t.Fatalf("%+v, %v", reply, err)
		}
		time.Sleep(time.Second)
		store.Renew(t.Context(), []driver.Renewal{{Key: "k", Owner: "o", TTL: ask.TTL}}, func(_ int, _ bool, err error) {
			if err != nil {
				t.Errorf("half a lease after the grant: %v", err)
			}
		})
	})
}
