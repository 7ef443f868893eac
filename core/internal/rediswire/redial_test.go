//go:build integration

package rediswire

import (
	"context"
	"errors"
	"net"
	"slices"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/interlock-go/interlock/core/driver"
	"github.com/interlock-go/interlock/internal/redistest"
)

// After as many refused dials as it has places, go-redis's pool tries once a second
// only: a lease of 1.5 s was lost though Redis was away for 300 ms.
func TestRefusedDialsDoNotMakeThePoolWait(t *testing.T) {
	t.Parallel()
	srv := redistest.Start(t)
	var away atomic.Bool
	rdb := srv.Client(t, func(o *redis.Options) {
		o.Dialer = func(ctx context.Context, network, addr string) (net.Conn, error) {
			if away.Load() {
				return nil, &net.OpError{Op: "dial", Net: network, Err: syscall.ECONNREFUSED}
			}
			return (&net.Dialer{}).DialContext(ctx, network, addr)
		}
	})
	s := newStore(t, rdb)
	renew := func() (failure error) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		s.Renew(ctx, []driver.Renewal{{Key: "k", Owner: "k:1", TTL: 30 * time.Second}}, func(_ int, _ bool, err error) { failure = err })
		return failure
	}
	free := func(within time.Duration) error {
		_, err := s.Release(t.Context(), driver.ReleaseRequest{Key: "k", Owner: "x:1", Deadline: time.Now().Add(within)})
		return err
	}
	for range 3 {
		away.Store(true)
		for range 2 * maxPipelines {
			if err := renew(); !errors.Is(err, driver.ErrUnavailable) {
				t.Fatal(err)
			}
			if err := free(0); err == nil || errors.Is(err, driver.ErrNotOwner) {
				t.Fatal(err)
			}
		}
		away.Store(false)
		// Not after a pause: at once.
		if err := renew(); !errors.Is(err, driver.ErrNotOwner) {
			t.Fatalf("the first renewal after the outage: %v", err)
		}
		if err := free(time.Minute); !errors.Is(err, driver.ErrNotOwner) {
			t.Fatalf("the first release after the outage: %v", err)
		}
		for _, c := range []*redis.Client{s.requests.single, s.renewals.single} {
			if err := c.Do(t.Context(), "client", "kill", "type", "normal", "skipme", "no").Err(); err != nil && IsReply(err) {
				t.Fatal(err)
			}
		}
		s.dialer.closeAll()
	}
}

func TestNodesThatLeftAClusterAreForgotten(t *testing.T) {
	t.Parallel()
	a, b := redistest.Start(t), redistest.Start(t)
	var now atomic.Pointer[redistest.Server]
	now.Store(a)
	s := newStore(t, clusterOf(t, &now))
	met := func() (addrs []string) {
		s.requests.mu.Lock()
		defer s.requests.mu.Unlock()
		for addr := range s.requests.nodes {
			addrs = append(addrs, addr)
		}
		return addrs
	}
	if err := acquireWithin(t.Context(), s, "k1", time.Minute); err != nil {
		t.Fatal(err)
	}
	before := met()
	now.Store(b)
	redistest.Eventually(t, time.Minute, func(ctx context.Context) error {
		_ = acquireWithin(ctx, s, "k2", time.Minute)
		if slices.Equal(met(), before) {
			return errors.New("the other node was not met yet")
		}
		return nil
	})
	redistest.Eventually(t, time.Minute, func(context.Context) error {
		s.requests.tidy()
		if list := met(); len(list) != 1 || list[0] == before[0] {
			return errors.New("the store keeps what it needs for " + list[0])
		}
		return nil
	})
}
