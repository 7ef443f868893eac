//go:build long && unix

package faults

import (
	"context"
	"net"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/redisstore"
	"github.com/interlock-go/interlock/internal/redistest"
	"github.com/interlock-go/interlock/trust/internal/faultnet"
)

// replicas is a master with replicas, the last of them fed by a link that can
// be cut, and a virtual address that follows the master.
type replicas struct {
	*redistest.ReplicaSet
	s    *scene
	link *faultnet.Proxy
	last *redistest.Server
	wire faultnet.Wire
}

func newReplicas(t *testing.T, s *scene, n int) *replicas {
	t.Helper()
	r := &replicas{ReplicaSet: redistest.Replicated(t, n), s: s}
	r.link, r.last = faultnet.NewProxy(t, r.Master.Addr()), r.Replicas[n-1]
	host, port, err := net.SplitHostPort(r.link.Addr())
	if err != nil {
		t.Fatal(err)
	}
	replicaOf(t, r.last.Client(t), host, port)
	r.AwaitSync(t)
	return r
}

// client is a client of the virtual address.
func (r *replicas) client(t *testing.T) *redis.Client { return r.Master.Client(t, r.wire.Through) }

// acknowledged is a process that wants n replicas to have each of its locks.
func (r *replicas) acknowledged(t *testing.T, n int, within time.Duration) *core.Locker {
	t.Helper()
	return r.s.lockerWith(r.client(t), []redisstore.Option{redisstore.Replicas(n, within)}, core.Watchdog(30*time.Second))
}

// promote kills the master and has the last replica take its place.
func (r *replicas) promote(t *testing.T) {
	t.Helper()
	r.Master.Kill()
	replicaOf(t, r.last.Client(t), "NO", "ONE")
	r.wire.Lead(r.last.Addr())
	r.wire.Break()
}

func TestLaggingReplicaPromoted(t *testing.T) {
	s := stage(t)
	r := newReplicas(t, s, 2)
	b := s.locker(r.client(t))
	r.link.Cut() // the one in time answers for both
	one := s.lockerWith(r.client(t), []redisstore.Option{redisstore.Replicas(1, 5*time.Second)}, core.Watchdog(3*time.Second))
	held := s.must(one, "k")
	_, err := r.acknowledged(t, 2, 100*time.Millisecond).Lock(t.Context(), "late")
	s.wantErr(err, core.ErrNotReplicated) // a request for all of them gets an error
	r.promote(t)
	next := s.must(b, "k")
	s.ordered(held, next)
	s.lost(held)
	s.wantErr(held.Release(t.Context()), core.ErrLost)
	s.release(next)
	s.clean(r.last)
}

func TestMasterPausedFailoverMasterWakes(t *testing.T) {
	s := stage(t)
	set := redistest.Sentinel(t, 1)
	old := set.Master
	a, b := s.locker(set.Client(t), core.Watchdog(30*time.Second)), s.locker(set.Client(t), core.Watchdog(30*time.Second))
	// A process that is not told about failovers.
	stale := s.locker(old.Client(t), core.Watchdog(2*time.Second))
	s.release(s.must(stale, "warm"))
	held := s.must(a, "held")
	set.AwaitSync(t)
	old.Pause(t)
	promoted := set.AwaitFailover(t, old)
	begin := time.Now()
	// The lock was replicated, and is still there.
	redistest.Eventually(t, soon, func(ctx context.Context) error { return held.Check(ctx) })
	t.Logf("the holder was confirmed %v after the promotion", time.Since(begin))
	s.refused(b, "held", core.ErrHeld)
	mine := s.must(b, "k")
	t.Logf("another lock was taken %v after the promotion", time.Since(begin))

	old.Resume(t) // it takes itself for the master until a sentinel tells it
	var theirs *core.Lease
	redistest.Eventually(t, soon, func(ctx context.Context) (err error) {
		theirs, err = stale.TryLock(context.WithoutCancel(ctx), "k")
		return err
	})
	s.ordered(mine, theirs)
	s.lost(theirs)
	s.wantErr(theirs.Release(t.Context()), core.ErrLost)
	if err := mine.Check(t.Context()); err != nil {
		t.Errorf("the lock on the new master: %v", err)
	}
	s.release(mine, held)
	s.clean(promoted, old)
}
