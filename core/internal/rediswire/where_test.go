//go:build integration

package rediswire

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/interlock-go/interlock/core/driver"
	"github.com/interlock-go/interlock/core/internal/logs"
	"github.com/interlock-go/interlock/internal/logtest"
	"github.com/interlock-go/interlock/internal/redistest"
)

// moving is an address that leads to one server and later to another. The Dialer of its
// client can be held while it has found the one and not yet returned.
type moving struct {
	now  atomic.Pointer[redistest.Server]
	held atomic.Pointer[gate] // of the next dial; nil: none is held
}

type gate struct{ dialed, goOn chan struct{} }

func newMoving(to *redistest.Server) *moving {
	m := &moving{}
	m.now.Store(to)
	return m
}

// hold has the next dial wait until goOn is closed.
func (m *moving) hold() *gate {
	g := &gate{make(chan struct{}), make(chan struct{})}
	m.held.Store(g)
	return g
}

func (m *moving) dial(ctx context.Context, network, _ string) (net.Conn, error) {
	cn, err := new(net.Dialer).DialContext(ctx, network, m.now.Load().Addr())
	if g := m.held.Swap(nil); g != nil {
		close(g.dialed)
		<-g.goOn
	}
	return cn, err
}

func (m *moving) store(t *testing.T, change ...func(*Config)) *Store {
	t.Helper()
	rdb := redis.NewClient(&redis.Options{Addr: "redis.example:6379", Dialer: m.dial})
	t.Cleanup(func() { _ = rdb.Close() })
	s := open(t, rdb, func(c *Config) {
		c.Timeout = time.Minute
		for _, f := range change {
			f(c)
		}
	})
	t.Cleanup(func() { _ = s.Close() })
	return s
}

// listens fails unless a store listens on a server to the calls of a locker.
func listens(ctx context.Context, s *Store, rdb *redis.Client, id string) error {
	channel := s.names.wanted(id)
	n, err := rdb.PubSubNumSub(ctx, channel).Result()
	if err == nil && n[channel] != 1 {
		err = fmt.Errorf("%d connections listen to %s", n[channel], channel)
	}
	return err
}

// A connection that was being dialed while the address came to lead elsewhere was not yet
// among the connections that the answer of the former master closes. A subscription stayed there
// for good, since no request goes by it: it received no release.
func TestAConnectionThatIsDialedWhileTheAddressChangesDoesNotStay(t *testing.T) {
	for name, connect := range map[string]func(*Store){
		"subscription": func(s *Store) { s.Calls("w1", func(driver.Call) {}) },
		"renewals": func(s *Store) {
			s.Renew(context.Background(), []driver.Renewal{{Key: "k", Owner: "o", TTL: time.Minute}}, func(int, bool, error) {})
		},
		"what is rare": func(s *Store) { _ = s.Delete(context.Background(), "x") },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			before, after := redistest.Start(t), redistest.Start(t)
			addr := newMoving(before)
			s := addr.store(t)
			s.subscriber.silence = time.Hour // nothing but the dial itself finds it out
			take(t, s, "warm")
			rest(t, s)
			g, done := addr.hold(), make(chan struct{})
			go func() { defer close(done); connect(s) }()
			<-g.dialed

			old := before.Client(t, func(o *redis.Options) { o.PoolSize = 1 })
			if err := old.ConfigSet(t.Context(), "min-replicas-to-write", "1").Err(); err != nil {
				t.Fatal(err)
			}
			addr.now.Store(after)
			if err := acquireWithin(t.Context(), s, "k", time.Minute); !errors.Is(err, driver.ErrNotReady) {
				t.Fatalf("the former master answered %v", err)
			}
			take(t, s, "k") // on the new master
			close(g.goOn)
			<-done
			redistest.Eventually(t, time.Minute, func(ctx context.Context) error { return connected(ctx, old, 0, 0) })
			if name == "subscription" {
				redistest.Eventually(t, time.Minute, func(ctx context.Context) error { return listens(ctx, s, after.Client(t), "w1") })
			}
		})
	}
}

// The address can come to lead elsewhere after the subscription was dialed and before any
// request is, so that no request is ever answered by the former master.
func TestASubscriptionThatLeadsElsewhereThanRequestsIsGivenUp(t *testing.T) {
	t.Parallel()
	before, after := redistest.Start(t), redistest.Start(t)
	addr := newMoving(after)
	s := addr.store(t)
	s.subscriber.silence = 200 * time.Millisecond
	s.requests.direct.most = 1
	take(t, s, "k") // over a connection that stays
	rest(t, s)
	addr.now.Store(before)
	s.Calls("w1", func(driver.Call) {})
	old, rdb := before.Client(t), after.Client(t)
	redistest.Eventually(t, time.Minute, func(ctx context.Context) error { return listens(ctx, s, old, "w1") })
	addr.now.Store(after)
	redistest.Eventually(t, time.Minute, func(ctx context.Context) error { return listens(ctx, s, rdb, "w1") })
	pinged(t, after) // that is found out once for a connection
}

// A node that was cut off from its Cluster answers pings, and announces no release of the
// node that was promoted in its place.
func TestASubscriptionGoesWithItsChannelToAnotherNode(t *testing.T) {
	t.Parallel()
	before, after := redistest.Start(t), redistest.Start(t)
	var now atomic.Pointer[redistest.Server]
	now.Store(before)
	s := newStore(t, clusterOf(t, &now))
	s.dialer.follow = follow{} // the nodes of a Cluster are asked when that seems to help
	s.subscriber.silence = 200 * time.Millisecond
	s.Calls("w1", func(driver.Call) {})
	redistest.Eventually(t, time.Minute, func(ctx context.Context) error { return listens(ctx, s, before.Client(t), "w1") })
	now.Store(after)
	s.reload()
	redistest.Eventually(t, time.Minute, func(ctx context.Context) error { return listens(ctx, s, after.Client(t), "w1") })
}

// A user who may not have that said falls back to pings.
func TestASubscriptionIsKeptWithoutTheRightToFindOutWhereItLeads(t *testing.T) {
	t.Parallel()
	srv := redistest.Start(t)
	admin := srv.Client(t)
	if err := admin.Do(t.Context(), "ACL", "SETUSER", "app", "on", ">p", "~*", "&*", "+@all", "-publish").Err(); err != nil {
		t.Fatal(err)
	}
	s := newStore(t, srv.Client(t, func(o *redis.Options) { o.Username, o.Password, o.ClientName = "app", "p", "store" }))
	s.subscriber.silence = 200 * time.Millisecond
	s.Calls("w1", func(driver.Call) {})
	redistest.Eventually(t, time.Minute, func(ctx context.Context) error { return listens(ctx, s, admin, "w1") })
	pinged(t, srv)
	s.subscriber.mu.Lock()
	defer s.subscriber.mu.Unlock()
	if s.subscriber.own != "" {
		t.Error("the server was never asked to say anything")
	}
}

// A proxy can keep what scripts publish from subscribers. To subscribe anew does not help.
func TestASubscriptionThatHearsNothingOfScriptsIsNotMadeAnewForEver(t *testing.T) {
	t.Parallel()
	requests, subscriptions := redistest.Start(t), redistest.Start(t)
	addr := newMoving(requests)
	var log logtest.Log
	s := addr.store(t, func(c *Config) { c.Log = logs.To(log.Logger()) })
	s.subscriber.silence = 200 * time.Millisecond
	s.requests.direct.most = 1
	take(t, s, "k") // over a connection that stays
	rest(t, s)
	addr.now.Store(subscriptions)
	s.Calls("w1", func(driver.Call) {})
	pinged(t, subscriptions)
	redistest.Eventually(t, time.Minute, func(context.Context) error { // the line is written on another goroutine
		if log.Count("does not reach the subscriptions of this process") == 0 {
			return errors.New("the log does not say that messages do not reach the subscriptions")
		}
		return nil
	})
	if n := log.Count("does not reach the subscriptions of this process"); n != 1 {
		t.Errorf("that was said %d times, want once", n)
	}
}

// pinged waits until a server was pinged by a subscription.
func pinged(t *testing.T, srv *redistest.Server) {
	t.Helper()
	srv.ResetStats(t)
	redistest.Eventually(t, time.Minute, func(context.Context) error {
		if n := srv.Calls(t)["ping"]; n < 2 {
			return fmt.Errorf("%d pings", n)
		}
		return nil
	})
}
