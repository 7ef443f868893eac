package casstore_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/casstore"
	"github.com/interlock-go/interlock/core/casstore/castest"
	"github.com/interlock-go/interlock/core/driver"
)

// Each ticket that was taken is noted for an hour after its end. The notes must not make the locks of
// their key dearer, and they end.
func TestTheNotesOfTakenTicketsAreNotInTheLock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := castest.NewMemory()
		a, b := start(t, server), start(t, server)
		_ = b.lock(t, "other").Release(t.Context()) // its store sweeps
		before := ""
		const handOvers = 50
		for i := range handOvers {
			lease := a.lock(t, "k")
			if before == "" {
				before = valueOf(server, "/k/lock")
			}
			ticket, err := lease.HandOver(t.Context(), time.Minute)
			if err != nil {
				t.Fatal(err)
			}
			taken, err := a.TakeOver(t.Context(), ticket)
			if err != nil {
				t.Fatal(err)
			}
			if i == handOvers-1 {
				if after := valueOf(server, "/k/lock"); len(after) > len(before)+50 {
					t.Errorf("after %d hand-overs the entry of the lock has %d bytes: %s; expected are %d, as before", handOvers, len(after), after, len(before))
				}
				if _, err := b.TakeOver(t.Context(), ticket); !errors.Is(err, core.ErrTicketTaken) {
					t.Errorf("a ticket that was taken is brought to another process: %v; expected is ErrTicketTaken", err)
				}
			}
			_ = taken.Release(t.Context())
			if i == handOvers-1 {
				if _, err := b.TakeOver(t.Context(), ticket); !errors.Is(err, core.ErrTicketTaken) {
					t.Errorf("it is brought again when the lock is free: %v; expected is ErrTicketTaken", err)
				}
			}
		}
		if left := named(server, "/k/"); len(left) > 0 {
			t.Errorf("after the last release the entries of the lock are %v; expected are none", left)
		}
		if notes := named(server, "/:note/"); len(notes) != handOvers {
			t.Fatalf("there are %d notes; expected are %d", len(notes), handOvers)
		}
		time.Sleep(55 * time.Minute)
		if notes := named(server, "/:note/"); len(notes) != handOvers {
			t.Errorf("after 55 minutes there are %d notes; expected are %d", len(notes), handOvers)
		}
		time.Sleep(2 * time.Hour)
		if notes := named(server, "/:note/"); len(notes) > 0 {
			t.Errorf("after three hours there are %d notes; expected are none", len(notes))
		}
	})
}

// No process of the service lives for an hour.
func TestTheNotesOfTakenTicketsEndWithoutAProcessThatHasSeenThemForLong(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := castest.NewMemory()
		for day := range 2 {
			for i := range 30 {
				m := start(t, server)
				if lease := m.lock(t, "k"); day == 0 && i == 0 {
					ticket, err := lease.HandOver(t.Context(), time.Minute)
					if err == nil {
						lease, err = m.TakeOver(t.Context(), ticket)
					}
					if err != nil {
						t.Fatal(err)
					}
					_ = lease.Release(t.Context())
				} else {
					_ = lease.Release(t.Context())
				}
				time.Sleep(50 * time.Minute)
				_ = m.Close(context.Background())
				_ = m.store.Close()
			}
		}
		if notes := named(server, "/:note/"); len(notes) > 0 {
			t.Errorf("after two days there are %d notes; expected are none", len(notes))
		}
	})
}

// A plain lock of a key costs as many transactions after hand-overs as before.
func TestALockIsAsCheapAfterHandOversAsBefore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server, writes := castest.NewMemory(), 0
		s := open(t, &castest.Link{Server: server, Meet: func(txn *casstore.Txn) castest.Fault {
			if txn != nil {
				writes++
			}
			return castest.Fault{}
		}})
		acquire := func(owner, from string) {
			rep, err := s.Acquire(t.Context(), driver.AcquireRequest{Key: "k", Owner: owner, From: from, TTL: time.Minute, Noted: time.Hour})
			if err != nil || !rep.Granted {
				t.Fatalf("the lock of %s: %+v, %v; expected is a grant", owner, rep, err)
			}
		}
		release := func(owner string) {
			if _, err := s.Release(t.Context(), driver.ReleaseRequest{Key: "k", Owner: owner, TTL: time.Minute}); err != nil {
				t.Fatalf("the release of %s: %v; expected is none", owner, err)
			}
		}
		pair := func(owner string) int {
			before := writes
			acquire(owner, "")
			release(owner)
			return writes - before
		}
		pair("first:1")
		want := pair("first:2")
		for i := range 20 {
			acquire(fmt.Sprint("a:", i), "")
			acquire(fmt.Sprint("b:", i), fmt.Sprint("a:", i))
			release(fmt.Sprint("b:", i))
		}
		if n := pair("last:1"); n > want {
			t.Errorf("after 20 hand-overs a lock and its release take %d transactions; expected are %d, as before", n, want)
		}
	})
}

// The operator is another process, which ends with its release. The note costs later locks nothing.
func TestAnOwnerLearnsThatAnOperatorOfAnotherProcessHasReleasedItsLocks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := castest.NewMemory()
		var sent atomic.Int64
		s := open(t, &castest.Link{Server: server, Meet: func(txn *casstore.Txn) castest.Fault {
			if txn != nil {
				sent.Add(1)
			}
			return castest.Fault{}
		}})
		pair := func(owner string) int64 {
			before := sent.Load()
			if rep, err := s.Acquire(t.Context(), driver.AcquireRequest{Key: "k0", Owner: owner, TTL: time.Minute}); err != nil || !rep.Granted {
				t.Fatalf("the lock of %s: %+v, %v; expected is a grant", owner, rep, err)
			}
			if _, err := s.Release(t.Context(), driver.ReleaseRequest{Key: "k0", Owner: owner, TTL: time.Minute}); err != nil {
				t.Fatalf("the release of %s: %v; expected is none", owner, err)
			}
			return sent.Load() - before
		}
		pair("first:1")
		want := pair("first:2")
		const locks = 40
		var batch []driver.Renewal
		for i := range locks {
			key, owner := fmt.Sprint("k", i), fmt.Sprint("a:", i)
			if rep, err := s.Acquire(t.Context(), driver.AcquireRequest{Key: key, Owner: owner, TTL: time.Minute}); err != nil || !rep.Granted {
				t.Fatalf("the lock of %s: %+v, %v; expected is a grant", owner, rep, err)
			}
			batch = append(batch, driver.Renewal{Key: key, Owner: owner, TTL: time.Minute})
		}
		operator := open(t, server)
		for _, b := range batch[1:] {
			if _, err := operator.Release(t.Context(), driver.ReleaseRequest{Key: b.Key, Owner: b.Owner, TTL: time.Minute, Revoked: time.Minute}); err != nil {
				t.Fatalf("the operator releases the lock of %s: %v; expected is no error", b.Owner, err)
			}
		}
		_ = operator.Close()
		before := sent.Load()
		s.Renew(t.Context(), batch, func(i int, _ bool, err error) {
			if i == 0 && err != nil || i > 0 && !errors.Is(err, driver.ErrRevoked) {
				t.Errorf("the renewal %d: %v; expected is ErrRevoked, and no error for the first", i, err)
			}
		})
		if n := sent.Load() - before; n != 2 {
			t.Errorf("the renewal of %d leases sent %d transactions; expected is one, and one that reads all notes", locks, n)
		}
		if _, err := s.Release(t.Context(), driver.ReleaseRequest{Key: "k0", Owner: "a:0", TTL: time.Minute}); err != nil {
			t.Fatal(err)
		}
		if n := pair("last:1"); n != want {
			t.Errorf("after the releases of the operator a lock and its release take %d transactions; expected are %d, as before", n, want)
		}
		if notes := named(server, "/:note/"); len(notes) != locks-1 {
			t.Errorf("there are %d notes; expected are %d", len(notes), locks-1)
		}
		time.Sleep(2 * time.Hour)
		if notes := named(server, "/:note/"); len(notes) > 0 {
			t.Errorf("after two hours there are %d notes; expected are none", len(notes))
		}
	})
}

// The loss is told also where the note cannot be read.
func TestALostLockIsToldWithoutItsNote(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := castest.NewMemory()
		s := open(t, &castest.Link{Server: server, Meet: func(txn *casstore.Txn) castest.Fault {
			lost := txn != nil && len(txn.Then) == 0 && len(txn.Read) == 1
			return castest.Fault{Lost: lost}
		}}, casstore.Logger(slog.New(slog.DiscardHandler)))
		if rep, err := s.Acquire(t.Context(), driver.AcquireRequest{Key: "k", Owner: "a:1", TTL: time.Minute}); err != nil || !rep.Granted {
			t.Fatalf("%+v, %v; expected is a grant", rep, err)
		}
		if _, err := open(t, server).Release(t.Context(), driver.ReleaseRequest{Key: "k", Owner: "a:1", Revoked: time.Minute}); err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		s.Renew(ctx, []driver.Renewal{{Key: "k", Owner: "a:1", TTL: time.Minute}}, func(_ int, _ bool, err error) {
			if !errors.Is(err, driver.ErrDeleted) || time.Since(began) > 5*time.Second {
				t.Errorf("after %v: %v; expected is ErrDeleted within the time of a lost answer", time.Since(began), err)
			}
		})
	})
}

func valueOf(server *castest.Memory, name string) string {
	for _, e := range named(server, name) {
		return e.Value
	}
	return ""
}
