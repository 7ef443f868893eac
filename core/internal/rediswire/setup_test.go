//go:build integration

package rediswire

import (
	"context"
	"errors"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/interlock-go/interlock/core/driver"
	"github.com/interlock-go/interlock/internal/redistest"
)

func TestMain(m *testing.M) { redistest.Main(m) }

// common opens a store on the server that the tests share, with a separate prefix.
func common(t *testing.T, change ...func(*redis.Options)) *Store {
	t.Helper()
	srv, name := redistest.Common(t)
	s := open(t, srv.Client(t, change...), func(c *Config) { c.Prefix = name })
	t.Cleanup(func() { _ = s.Close() })
	return s
}

// patiently is an option of a client that outlasts a machine that stands still, and sends
// nothing twice.
func patiently(o *redis.Options) { o.ReadTimeout, o.MaxRetries = time.Minute, -1 }

// go-redis closes a connection if its set-up returns an error, and otherwise uses it:
// late answers would then be taken for answers to the next commands.
func TestASetUpWithoutItsAnswersIsAnError(t *testing.T) {
	t.Parallel()
	srv := redistest.Start(t)
	if err := loading(scripts, nil)(t.Context(), srv.Client(t, patiently).Conn()); err != nil {
		t.Fatalf("on a server that answers: %v", err)
	}
	rdb := srv.Client(t, func(o *redis.Options) { o.ReadTimeout = 100 * time.Millisecond })
	cn := rdb.Conn()
	defer cn.Close()
	_ = cn.Ping(t.Context()) // with or without an answer, the set-up of go-redis has ended
	srv.Pause(t)
	defer srv.Resume(t)
	if err := loading(scripts, nil)(t.Context(), cn); err == nil {
		t.Error("a set-up whose answers did not come was taken for good")
	}
}

// written keeps the bytes written to each connection.
type written struct {
	mu   sync.Mutex
	each []*writtenConn
}

type writtenConn struct {
	net.Conn
	to   *written
	text strings.Builder
}

func (w *written) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	cn, err := (&net.Dialer{}).DialContext(ctx, network, addr)
	if err != nil {
		return nil, err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.each = append(w.each, &writtenConn{Conn: cn, to: w})
	return w.each[len(w.each)-1], nil
}

func (c *writtenConn) Write(p []byte) (int, error) {
	c.to.mu.Lock()
	c.text.Write(p)
	c.to.mu.Unlock()
	return c.Conn.Write(p)
}

// A connection of a subscription is set up anew in each failover, and calls no script.
func TestAConnectionOfASubscriptionLoadsNoScripts(t *testing.T) {
	t.Parallel()
	var w written
	s := common(t, func(o *redis.Options) { o.Dialer = w.dial })
	defer s.Calls("w1", func(driver.Call) {})()
	redistest.Eventually(t, time.Minute, func(context.Context) error {
		s.subscriber.mu.Lock()
		defer s.subscriber.mu.Unlock()
		for _, topic := range s.subscriber.topics {
			if !topic.confirmed.IsZero() {
				return nil
			}
		}
		return errors.New("not subscribed")
	})
	take(t, s, "k")
	w.mu.Lock()
	defer w.mu.Unlock()
	subscriptions, requests := 0, 0
	for _, c := range w.each {
		text := strings.ToLower(c.text.String())
		loads := strings.Contains(text, "script") || strings.Contains(text, "eval\r\n")
		switch {
		case strings.Contains(text, "subscribe\r\n") && loads:
			t.Errorf("a subscription loads scripts, or is probed:\n%.300s", text)
		case strings.Contains(text, "subscribe\r\n"):
			subscriptions++
		case loads:
			requests++
		}
	}
	if subscriptions != 1 || requests == 0 {
		t.Errorf("%d subscriptions, and %d connections with scripts; want 1, and at least 1", subscriptions, requests)
	}
}
