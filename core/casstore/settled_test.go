package casstore_test

import (
	"errors"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/interlock-go/interlock/core/casstore"
	"github.com/interlock-go/interlock/core/casstore/castest"
	"github.com/interlock-go/interlock/core/driver"
)

// disk is the state of the disk of a server such as etcd.
type disk int32

const (
	roomy disk = iota
	// filling: the server executes what writes, and answers that there is no space.
	filling
	// full: the server does not execute what writes.
	full
)

// onDisk makes a store on a server with a disk.
func onDisk(t *testing.T, server *castest.Memory, opts ...casstore.Option) (*casstore.Store, *atomic.Int32) {
	t.Helper()
	var state atomic.Int32
	link := &castest.Link{Server: server, Meet: func(txn *casstore.Txn) castest.Fault {
		f := castest.Fault{Before: time.Millisecond, After: time.Millisecond}
		if txn == nil {
			return f
		}
		for _, op := range txn.Then {
			if !op.Delete && disk(state.Load()) != roomy {
				f.Settled, f.Lost = true, disk(state.Load()) == full
			}
		}
		return f
	}}
	return open(t, link, append(opts, casstore.Logger(slog.New(slog.DiscardHandler)))...), &state
}

// locksOf returns the names of the locks that there are.
func locksOf(server *castest.Memory) (names []string) {
	for _, e := range server.Entries() {
		if strings.HasSuffix(e.Name, "/lock") {
			names = append(names, e.Name)
		}
	}
	return names
}

func TestALockThatTheServerTookWithoutSpaceDoesNotStay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := castest.NewMemory()
		store, state := onDisk(t, server)
		state.Store(int32(filling))
		reply, err := store.Acquire(t.Context(), driver.AcquireRequest{Key: "k", Owner: "o", TTL: lease, Waiter: "w"})
		if err != nil || !reply.Granted || reply.Ambiguous {
			t.Fatalf("the server has executed the transaction: %+v, %v; want a grant", reply, err)
		}
		state.Store(int32(full))
		if _, err := store.Release(t.Context(), driver.ReleaseRequest{Key: "k", Owner: "o", TTL: lease, Waiter: "+w"}); err != nil {
			t.Errorf("Release without space: %v; want nil, since a deletion needs none", err)
		}
		if left := locksOf(server); len(left) > 0 {
			t.Errorf("%q stays after the release", left)
		}
	})
}

func TestAServerWithoutSpaceRefusesALockAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store, state := onDisk(t, castest.NewMemory())
		state.Store(int32(full))
		begin := time.Now()
		reply, err := store.Acquire(t.Context(), driver.AcquireRequest{Key: "k", Owner: "o", TTL: lease})
		if !errors.Is(err, driver.ErrUnavailable) || !errors.Is(err, casstore.ErrSettled) || reply.Granted || reply.Ambiguous {
			t.Errorf("%+v, %v; want ErrUnavailable and a known outcome", reply, err)
		}
		if took := time.Since(begin); took > 100*time.Millisecond {
			t.Errorf("the refusal took %v; want some round trips", took)
		}
	})
}

// A release of an owner of unknown outcome writes the void. Without space it deletes the lock
// at least, and the void follows once there is space.
func TestAnOwnerOfUnknownOutcomeIsReleasedWithoutSpace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := castest.NewMemory()
		var lost atomic.Bool
		var state atomic.Int32
		store := open(t, &castest.Link{Server: server, Meet: func(txn *casstore.Txn) castest.Fault {
			f := castest.Fault{Before: time.Millisecond, After: time.Millisecond, Unanswered: lost.Load()}
			for _, op := range txn.Then {
				if !op.Delete && disk(state.Load()) == full {
					f.Settled, f.Lost = true, true
				}
			}
			return f
		}}, casstore.Logger(slog.New(slog.DiscardHandler)))
		lost.Store(true)
		ask := driver.AcquireRequest{Key: "k", Owner: "o", TTL: lease, Deadline: time.Now().Add(time.Second)}
		if reply, err := store.Acquire(t.Context(), ask); err == nil || !reply.Ambiguous {
			t.Fatalf("%+v, %v; want an unknown outcome", reply, err)
		}
		lost.Store(false)
		state.Store(int32(full))
		release := driver.ReleaseRequest{Key: "k", Owner: "o", TTL: lease}
		if _, err := store.Release(t.Context(), release); !errors.Is(err, driver.ErrUnavailable) {
			t.Errorf("Release: %v; want ErrUnavailable while the void cannot be written", err)
		}
		if left := locksOf(server); len(left) > 0 {
			t.Errorf("%q stays after the release", left)
		}
		state.Store(int32(roomy))
		if _, err := store.Release(t.Context(), release); !errors.Is(err, driver.ErrNotOwner) {
			t.Errorf("Release with space again: %v; want ErrNotOwner, since the lock is deleted", err)
		}
		if len(named(server, ":void/")) == 0 {
			t.Error("no void was written: a late request could take the lock")
		}
	})
}

// The lease of a permit ends while its release is under way, so it is given up twice. The second time finds that the
// first has given it up, and another process may have a permit by then.
func TestTheEndOfAPermitWithoutSpaceDeletesNoOtherLock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := castest.NewMemory()
		var lost, slow, without atomic.Bool
		store := open(t, &castest.Link{Server: server, Meet: func(txn *casstore.Txn) castest.Fault {
			f := castest.Fault{Before: time.Millisecond, After: time.Millisecond, Unanswered: lost.Swap(false)}
			if txn == nil {
				return f
			}
			if slow.Swap(false) {
				f.After = 2 * time.Second
			}
			for _, op := range txn.Then {
				if !op.Delete && without.Load() {
					f.Settled, f.Lost = true, true
				}
			}
			return f
		}}, casstore.Logger(slog.New(slog.DiscardHandler)), casstore.Timeout(10*time.Second))
		lost.Store(true) // so another transaction may take the permit yet, until a void is written
		began := time.Now()
		reply, err := store.Acquire(t.Context(), driver.AcquireRequest{Key: "k", Owner: "a:1", Kind: driver.Permit, AtMost: 1, TTL: lease})
		if err != nil || !reply.Granted {
			t.Fatalf("%+v, %v; want a permit", reply, err)
		}
		other := locker{open(t, server), t, "b"}
		ask := driver.AcquireRequest{
			Key: "k", Owner: "b:1", Kind: driver.Permit, AtMost: 1, TTL: lease, Waiter: driver.NewWaiter("b", driver.Permit, time.Minute),
		}
		if reply, err := other.Acquire(t.Context(), ask); err != nil || !reply.Listed {
			t.Fatalf("%+v, %v; want the other process in line", reply, err)
		}
		calls := other.called()
		time.Sleep(time.Until(began.Add(lease - time.Second)))
		slow.Store(true)
		released := make(chan error, 1)
		go func() {
			_, err := store.Release(t.Context(), driver.ReleaseRequest{Key: "k", Owner: "a:1", Kind: driver.Permit, AtMost: 1, TTL: lease})
			released <- err
		}()
		<-calls
		without.Store(true)
		if reply, err := other.Acquire(t.Context(), ask); err != nil || !reply.Granted {
			t.Fatalf("%+v, %v; want the permit that was released", reply, err)
		}
		if err := <-released; err != nil {
			t.Errorf("Release: %v; want nil", err)
		}
		time.Sleep(time.Second)
		if left := locksOf(server); len(left) != 1 {
			t.Errorf("%q are there; want the lock of the other process, which has not released it", left)
		}
	})
}
