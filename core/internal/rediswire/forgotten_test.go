//go:build integration

package rediswire

import (
	"context"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/interlock-go/interlock/core/driver"
	"github.com/interlock-go/interlock/internal/redistest"
)

// gateway is on the way to a server. It forgets connections: writes get lost then, and no
// answer comes.
type gateway struct {
	mu   sync.Mutex
	made []*passing
}

type passing struct {
	net.Conn
	forgotten atomic.Bool
}

func (c *passing) Write(p []byte) (int, error) {
	if c.forgotten.Load() {
		return len(p), nil
	}
	return c.Conn.Write(p)
}

func (g *gateway) through(o *redis.Options) {
	o.Dialer = func(ctx context.Context, network, addr string) (net.Conn, error) {
		cn, err := new(net.Dialer).DialContext(ctx, network, addr)
		if err != nil {
			return nil, err
		}
		g.mu.Lock()
		defer g.mu.Unlock()
		c := &passing{Conn: cn}
		g.made = append(g.made, c)
		return c, nil
	}
}

func (g *gateway) forget() {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, c := range g.made {
		c.forgotten.Store(true)
	}
}

// The first try took all the time that a release had, and there was no second one.
func TestAReleaseOverAConnectionThatAGatewayHasForgottenIsSentAgain(t *testing.T) {
	t.Parallel()
	g, srv := new(gateway), redistest.Start(t)
	s := open(t, srv.Client(t, g.through), func(c *Config) { c.Timeout = 4 * time.Second })
	defer s.Close()
	if err := acquireWithin(t.Context(), s, "k", 30*time.Second); err != nil {
		t.Fatal(err)
	}
	rest(t, s)
	g.forget()
	_, err := s.Release(t.Context(), driver.ReleaseRequest{
		Key: "k", Owner: "k:1", TTL: 30 * time.Second, Deadline: time.Now().Add(time.Second),
	})
	if err != nil {
		t.Errorf("the release failed: %v; want a second try over another connection", err)
	}
	take(t, s, "k")
}

// After a pause of more than a minute the pool of go-redis had the connection in between, and
// gave it out again unseen.
func TestAConnectionIsAskedForAnAnswerAfterAnyLongPause(t *testing.T) {
	t.Parallel()
	for name, pause := range map[string]time.Duration{"short of the pool": maxIdle, "through the pool": maxPinned} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g, srv := new(gateway), redistest.Start(t)
			s := open(t, srv.Client(t, g.through), func(c *Config) { c.Timeout = 8 * time.Second })
			defer s.Close()
			take(t, s, "k")
			rest(t, s)
			g.forget()
			l := lastUsed(s)
			l.used = l.used.Add(-pause) // as if so much time had gone by
			rep, err := s.Acquire(t.Context(), driver.AcquireRequest{
				Key: "k", Owner: "o", TTL: time.Minute, Deadline: time.Now().Add(time.Minute),
			})
			if err != nil || !rep.Granted || rep.Ambiguous {
				t.Errorf("%+v, %v; want a grant over another connection and no doubt about the outcome", rep, err)
			}
		})
	}
}
