package rediswire

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/driver"
	"github.com/interlock-go/interlock/internal/redistest"
)

// slowTopology is a Cluster of one node whose topology takes its time to be read once
// it has changed.
type slowTopology struct {
	addr  atomic.Pointer[string]
	takes atomic.Int64  // nanoseconds
	asked chan struct{} // gets a token for each reading that has begun, if there is room
}

func newSlowTopology(addr string) *slowTopology {
	s := &slowTopology{asked: make(chan struct{}, 1)}
	s.addr.Store(&addr)
	return s
}

// store returns a store on the Cluster. go-redis finds its nodes as on any Cluster,
// except that this answer is in place of CLUSTER SLOTS.
func (s *slowTopology) store(tb testing.TB) *Store {
	tb.Helper()
	rdb := redis.NewClusterClient(&redis.ClusterOptions{
		ClusterSlots: func(ctx context.Context) ([]redis.ClusterSlot, error) {
			addr := *s.addr.Load() // what the node that is asked knows when it is
			select {
			case s.asked <- struct{}{}:
			default:
			}
			select {
			case <-time.After(time.Duration(s.takes.Load())):
			case <-ctx.Done():
				return nil, ctx.Err()
			}
			return []redis.ClusterSlot{{Start: 0, End: 16383, Nodes: []redis.ClusterNode{{Addr: addr}}}}, nil
		},
	})
	tb.Cleanup(func() { _ = rdb.Close() })
	return newStore(tb, rdb)
}

// Three tries that are refused at once take 30 ms, and a reload of the topology that
// runs beside them takes longer on a busy machine: the lock of a promoted node was
// "unavailable", for all waiters of the key.
func TestARefusedNodeOfAClusterIsUnavailableOnlyByATopologyOfAfterTheRefusal(t *testing.T) {
	before, after := redistest.Start(t), redistest.Start(t)
	cluster := newSlowTopology(before.Addr())
	s := cluster.store(t)
	if err := acquire(t.Context(), s, "warm", 5*time.Second); err != nil {
		t.Fatal(err)
	}
	cluster.takes.Store(int64(300 * time.Millisecond))
	before.Kill()
	addr := after.Addr()
	cluster.addr.Store(&addr)
	for _, within := range []time.Duration{10 * time.Second, 0} {
		ask := driver.AcquireRequest{Key: within.String(), Owner: "k:1", TTL: 30 * time.Second, Late: func(driver.Reply, error) {}}
		if within > 0 {
			ask.Deadline = time.Now().Add(within)
		}
		if rep, err := s.Acquire(t.Context(), ask); err != nil || !rep.Granted {
			t.Errorf("within %v: %+v, %v", within, rep, err)
		}
	}
}

// A reload that began before the refusal may bring the topology of before it.
func TestAReloadThatBeganBeforeARefusalDoesNotCountForIt(t *testing.T) {
	before, after := redistest.Start(t), redistest.Start(t)
	cluster := newSlowTopology(before.Addr())
	s := cluster.store(t)
	if err := acquire(t.Context(), s, "warm", 5*time.Second); err != nil {
		t.Fatal(err)
	}
	cluster.takes.Store(int64(500 * time.Millisecond))
	for len(cluster.asked) > 0 {
		<-cluster.asked
	}
	s.reload()
	<-cluster.asked // by this one or by the look for another master, each second
	before.Kill()
	addr := after.Addr()
	cluster.addr.Store(&addr)
	if err := acquire(t.Context(), s, "k", 15*time.Second); err != nil {
		t.Error(err)
	}
}

// A node that is down and has no successor is no reason to wait for ever.
func TestANodeThatStaysDownIsUnavailableOnceTheTopologyWasReadAgain(t *testing.T) {
	srv := redistest.Start(t)
	cluster := newSlowTopology(srv.Addr())
	s := cluster.store(t)
	if err := acquire(t.Context(), s, "warm", 5*time.Second); err != nil {
		t.Fatal(err)
	}
	srv.Kill()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	begin := time.Now()
	if err := acquire(ctx, s, "k", time.Minute); !errors.Is(err, core.ErrUnavailable) || errors.Is(err, driver.ErrPending) {
		t.Error(err)
	}
	t.Logf("unavailable after %v", time.Since(begin))
	if d := time.Since(begin); d > 10*time.Second {
		t.Errorf("it took %v", d)
	}
}
