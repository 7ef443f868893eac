//go:build long && linux

package consensus_test

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/alongside"
)

// Of docs/moving.md.

func oldMutex(client *clientv3.Client, name string, ttl time.Duration) alongside.Lock {
	var session *concurrency.Session
	return alongside.Lock{
		Lease: ttl,
		Acquire: func(ctx context.Context) error {
			lease, err := client.Grant(ctx, int64(ttl/time.Second))
			if err != nil {
				return err
			}
			if session, err = concurrency.NewSession(client, concurrency.WithLease(lease.ID)); err != nil {
				return err
			}
			if err = concurrency.NewMutex(session, name).Lock(ctx); err != nil {
				session.Orphan()
			}
			return err
		},
		Renew: func(ctx context.Context) error {
			_, err := client.KeepAliveOnce(ctx, session.Lease())
			if errors.Is(err, rpctypes.ErrLeaseNotFound) {
				return errors.Join(core.ErrLost, err)
			}
			return err
		},
		Release: func(ctx context.Context) error {
			session.Orphan()
			_, err := client.Revoke(ctx, session.Lease())
			return err
		},
	}
}

func oldCurator(conn *zk.Conn, path string, session time.Duration) alongside.Lock {
	lock, of := zk.NewLock(conn, path, zk.WorldACL(zk.PermAll)), int64(0)
	alive := func() error {
		_, _, err := conn.Exists(path)
		if err == nil && conn.SessionID() != of {
			return core.ErrLost // the node of the lock ended with the session
		}
		return err
	}
	return alongside.Lock{
		Lease: session,
		Acquire: func(context.Context) error {
			if _, _, err := conn.Exists(path); err != nil {
				return err
			}
			of = conn.SessionID()
			return lock.Lock()
		},
		Renew:   func(context.Context) error { return alive() },
		Release: func(context.Context) error { return lock.Unlock() },
	}
}

// curator is the lock of Curator's InterProcessMutex, in Go: the names of its nodes, and its order.
func curator(conn *zk.Conn, path string) (enter, leave func(ctx context.Context) error) {
	var node string
	number := func(name string) string { _, n, _ := strings.Cut(name, "lock-"); return n }
	enter = func(ctx context.Context) (err error) {
		prefix := fmt.Sprintf("%s/_c_%s-lock-", path, rand.Text())
		if node, err = conn.Create(prefix, nil, zk.FlagEphemeral|zk.FlagSequence, zk.WorldACL(zk.PermAll)); err != nil {
			return err
		}
		for {
			all, _, err := conn.Children(path)
			if err != nil {
				return err
			}
			slices.SortFunc(all, func(a, b string) int { return strings.Compare(number(a), number(b)) })
			at := slices.Index(all, strings.TrimPrefix(node, path+"/"))
			if at <= 0 {
				return nil
			}
			_, _, gone, err := conn.GetW(path + "/" + all[at-1])
			if errors.Is(err, zk.ErrNoNode) {
				continue
			}
			if err != nil {
				return err
			}
			select {
			case <-gone:
			case <-ctx.Done():
				return errors.Join(ctx.Err(), conn.Delete(node, -1))
			}
		}
	}
	return enter, func(context.Context) error { return conn.Delete(node, -1) }
}

// shared is what holders must not do at the same time.
type shared struct{ inside, sections, overlaps atomic.Int64 }

func (s *shared) section(context.Context) error {
	if s.inside.Add(1) > 1 {
		s.overlaps.Add(1)
	}
	s.sections.Add(1)
	pause(time.Millisecond)
	s.inside.Add(-1)
	return nil
}

// caller runs a section under the lock of a release.
type caller func(ctx context.Context, section func(context.Context) error) error

// of is a caller that has another lock alone.
func of(lock func() alongside.Lock) caller {
	return func(ctx context.Context, section func(context.Context) error) error {
		other := lock()
		if err := other.Acquire(ctx); err != nil {
			return err
		}
		return errors.Join(section(ctx), other.Release(ctx))
	}
}

// beneath is a caller that has the lock of this library, and the other one inside of it.
func beneath(locker *core.Locker, lock func() alongside.Lock) caller {
	return func(ctx context.Context, section func(context.Context) error) error {
		return locker.Do(ctx, "account/42", func(ctx context.Context) error { return alongside.Do(ctx, lock(), section) })
	}
}

func lockerOn(t *testing.T, store core.Store) *core.Locker {
	t.Helper()
	locker, err := core.New(store)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = locker.Close(context.Background()) })
	return locker
}

// sideBySide has callers of two releases run sections, and wants none of them at the same time. Then it
// has a caller of the old release stay inside while a caller enters that has the lock of this library alone.
func sideBySide(t *testing.T, old, both []caller, alone *core.Locker) {
	t.Helper()
	const each = 60
	var s shared
	var all sync.WaitGroup
	for _, enter := range slices.Concat(old, both) {
		all.Go(func() {
			for range each {
				if err := enter(t.Context(), s.section); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	all.Wait()
	t.Logf("%d overlaps of %d sections", s.overlaps.Load(), s.sections.Load())
	if want := int64(each * len(slices.Concat(old, both))); s.overlaps.Load() != 0 || s.sections.Load() != want {
		t.Errorf("%d overlaps of %d sections; want none of %d", s.overlaps.Load(), s.sections.Load(), want)
	}
	var control shared
	if err := old[0](t.Context(), func(ctx context.Context) error {
		control.inside.Add(1)
		defer control.inside.Add(-1)
		return alone.Do(ctx, "account/42", control.section)
	}); err != nil {
		t.Error(err)
	}
	if control.overlaps.Load() != 1 {
		t.Error("the control saw no overlap: a release without the old lock entered beside the old release")
	}
}

func TestTheMutexOfEtcdAndTheReleaseWithBothExcludeEachOther(t *testing.T) {
	c := newCluster(t)
	var old, both []caller
	var last *core.Locker
	for range 2 {
		before, after := c.client(), c.client()
		mutex := func(client *clientv3.Client) func() alongside.Lock {
			return func() alongside.Lock { return oldMutex(client, "account/42", 10*time.Second) }
		}
		last = lockerOn(t, open(t, after))
		old, both = append(old, of(mutex(before))), append(both, beneath(last, mutex(after)), beneath(last, mutex(after)))
	}
	sideBySide(t, old, both, last)
}

func TestTheLossOfTheMutexOfEtcdReachesTheHolder(t *testing.T) {
	c := newCluster(t)
	client := c.client()
	locker := lockerOn(t, open(t, client))
	err := beneath(locker, func() alongside.Lock { return oldMutex(client, "account/42", 2*time.Second) })(t.Context(), func(ctx context.Context) error {
		leases, err := client.Leases(t.Context())
		if err != nil {
			return err
		}
		for _, lease := range leases.Leases {
			if _, err := client.Revoke(t.Context(), lease.ID); err != nil {
				return err
			}
		}
		<-ctx.Done()
		return nil
	})
	if !errors.Is(err, core.ErrLost) {
		t.Errorf("the lease of the mutex was revoked: %v; want ErrLost", err)
	}
}

func TestCuratorsMutexAndTheReleaseWithBothExcludeEachOther(t *testing.T) {
	e := newEnsemble(t)
	e.leader()
	const path = "/locks/account"
	first := e.conn()
	for _, p := range []string{"/locks", path} {
		if _, err := first.Create(p, nil, 0, zk.WorldACL(zk.PermAll)); err != nil {
			t.Fatal(err)
		}
	}
	var old, both []caller
	var last *core.Locker
	for range 2 {
		before, after := e.conn(), e.conn()
		old = append(old, of(func() alongside.Lock {
			enter, leave := curator(before.Conn, path)
			return alongside.Lock{Acquire: enter, Release: leave}
		}))
		last = lockerOn(t, openOn(t, after))
		mutex := func() alongside.Lock { return oldCurator(after.Conn, path, 4*time.Second) }
		both = append(both, beneath(last, mutex), beneath(last, mutex))
	}
	sideBySide(t, old, both, last)
}
