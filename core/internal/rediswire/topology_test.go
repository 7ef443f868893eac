//go:build integration

package rediswire

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/interlock-go/interlock/core/driver"
	"github.com/interlock-go/interlock/internal/redistest"
)

// gatedTopology is a Cluster of one node. A test can keep its topology from being read.
type gatedTopology struct {
	addr  atomic.Pointer[string]
	gate  atomic.Pointer[chan struct{}] // each reading waits until it is closed
	asked chan struct{}                 // gets a token for each reading that has begun, if there is room
	dials atomic.Int64
}

func newGatedTopology(addr string) *gatedTopology {
	c := &gatedTopology{asked: make(chan struct{}, 1)}
	c.addr.Store(&addr)
	c.close()()
	return c
}

// close keeps the topology from being read until open is called.
func (c *gatedTopology) close() (open func()) {
	gate := make(chan struct{})
	c.gate.Store(&gate)
	return sync.OnceFunc(func() { close(gate) })
}

// store returns a store on the Cluster. go-redis finds its nodes as on any Cluster,
// except that this answer is in place of CLUSTER SLOTS.
func (c *gatedTopology) store(tb testing.TB) *Store {
	tb.Helper()
	rdb := redis.NewClusterClient(&redis.ClusterOptions{
		ClusterSlots: func(ctx context.Context) ([]redis.ClusterSlot, error) {
			addr := *c.addr.Load() // the view of the asked node at that time
			select {
			case c.asked <- struct{}{}:
			default:
			}
			select {
			case <-*c.gate.Load():
			case <-ctx.Done():
				return nil, ctx.Err()
			}
			return []redis.ClusterSlot{{Start: 0, End: 16383, Nodes: []redis.ClusterNode{{Addr: addr}}}}, nil
		},
		Dialer: func(ctx context.Context, network, addr string) (net.Conn, error) {
			c.dials.Add(1)
			return new(net.Dialer).DialContext(ctx, network, addr)
		},
	})
	tb.Cleanup(func() { _ = rdb.Close() })
	s := newStore(tb, rdb)
	s.dialer.follow = follow{} // the topology is not asked for each second, which closes connections
	return s
}

// refused waits until dials have been refused more often than a request is tried otherwise.
func (c *gatedTopology) refused(t *testing.T) {
	t.Helper()
	before := c.dials.Load()
	redistest.Eventually(t, time.Minute, func(context.Context) error {
		if n := c.dials.Load() - before; n <= maxTries {
			return fmt.Errorf("%d dials", n)
		}
		return nil
	})
}

// Three tries that are refused at once take 30 ms, and a reload of the topology at the
// same time takes longer on a busy machine: the lock of a promoted node was
// "unavailable", for all waiters of the key. A reload that began before the refusal may
// bring the topology of before it.
func TestARefusedNodeOfAClusterIsUnavailableOnlyByATopologyOfAfterTheRefusal(t *testing.T) {
	for name, c := range map[string]struct {
		deadline time.Duration // of the request
		earlier  bool          // a reload has begun before
	}{
		"with a deadline":                   {time.Hour, false},
		"without a deadline":                {0, false},
		"during a reload that began before": {time.Hour, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			before, after := redistest.Start(t), redistest.Start(t)
			cluster := newGatedTopology(before.Addr())
			s := cluster.store(t)
			take(t, s, "warm")
			open := cluster.close()
			defer open() // after a failure too
			if c.earlier {
				for len(cluster.asked) > 0 {
					<-cluster.asked
				}
				s.reload()
				<-cluster.asked
			}
			before.Kill()
			addr := after.Addr()
			cluster.addr.Store(&addr)
			got := make(chan error, 1)
			ask := driver.AcquireRequest{Key: "k", Owner: "k:1", TTL: time.Hour, Late: func(driver.Reply, error) {}}
			if c.deadline > 0 {
				ask.Deadline = time.Now().Add(c.deadline)
			}
			go func() {
				rep, err := s.Acquire(t.Context(), ask)
				if err == nil && !rep.Granted {
					err = errHeld
				}
				got <- err
			}()
			cluster.refused(t)
			open()
			if err := <-got; err != nil {
				t.Error(err)
			}
		})
	}
}

// A node that is down and has no successor is no reason to wait for ever.
func TestANodeThatStaysDownIsUnavailableOnceTheTopologyWasReadAgain(t *testing.T) {
	t.Parallel()
	srv := redistest.Start(t)
	s := newGatedTopology(srv.Addr()).store(t)
	take(t, s, "warm")
	srv.Kill()
	err := acquireWithin(t.Context(), s, "k", time.Hour)
	if !errors.Is(err, driver.ErrUnavailable) || errors.Is(err, driver.ErrPending) {
		t.Error(err)
	}
}
