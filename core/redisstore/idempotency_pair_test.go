package redisstore_test

import (
	"bytes"
	"context"
	"errors"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/interlock-go/interlock/core/reason"
	"github.com/interlock-go/interlock/internal/redistest"
)

// gapConn calls a function, once, after the server has got a claim and before it
// gets what is behind the claim in the same pipeline. If that returns an error,
// the connection breaks behind the claim's reply.
type gapConn struct {
	net.Conn
	gap    *atomic.Pointer[func() error]
	broken error
	reads  int
}

func (c *gapConn) Write(p []byte) (int, error) {
	at := bytes.Index(p, []byte("*4\r\n$5\r\nhmget"))
	f := c.gap.Load()
	if at < 0 || f == nil {
		return c.Conn.Write(p)
	}
	c.gap.Store(nil)
	n, err := c.Conn.Write(p[:at])
	if err != nil {
		return n, err
	}
	if c.broken = (*f)(); c.broken != nil {
		return len(p), nil
	}
	m, err := c.Conn.Write(p[at:])
	return n + m, err
}

func (c *gapConn) Read(p []byte) (int, error) {
	if c.broken != nil {
		if c.reads++; c.reads > 1 {
			return 0, c.broken
		}
	}
	return c.Conn.Read(p)
}

// TestAResponseIsTheOneThatTheClaimHasFound has things happen between a claim and
// the command behind it that brings the response.
func TestAResponseIsTheOneThatTheClaimHasFound(t *testing.T) {
	srv := redistest.Shared(t)
	rdb := srv.Client(t)
	var gap atomic.Pointer[func() error]
	split := srv.Client(t, func(o *redis.Options) {
		o.Dialer = func(ctx context.Context, network, addr string) (net.Conn, error) {
			c, err := (&net.Dialer{}).DialContext(ctx, network, addr)
			return &gapConn{Conn: c, gap: &gap}, err
		}
	})
	e, other := newEngine(t, newStore(t, split)), newEngine(t, newStore(t, rdb))
	var bank bank
	changed := pay("k")
	changed.body = "other"
	forget := func() error { return other.Forget(t.Context(), "alice", "k") }
	for name, c := range map[string]struct {
		gap  func() error
		want func(n int) result
	}{
		"the record is gone": {forget, func(n int) result { return fresh(n + 1) }},
		"it is another answer's": {func() error {
			err := forget()
			do(t.Context(), other, pay("k"), bank.run)
			return err
		}, func(n int) result { return replayed(n + 1) }},
		"it is another request's": {func() error {
			err := forget()
			do(t.Context(), other, changed, bank.run)
			return err
		}, func(int) result { return refused(reason.KeyReused) }},
		"the connection breaks": {func() error { return net.ErrClosed }, replayed},
	} {
		rdb.FlushDB(t.Context())
		do(t.Context(), e, pay("k"), bank.run)
		n := int(bank.effects.Load())
		srv.ResetStats(t)
		between := func() error {
			redistest.Eventually(t, 10*time.Second, func(context.Context) error {
				if srv.Calls(t)["evalsha"] == 0 {
					return errors.New("the claim was not carried out yet")
				}
				return nil
			})
			return c.gap()
		}
		gap.Store(&between)
		want(t, name, do(t.Context(), e, pay("k"), bank.run), c.want(n))
		if gap.Load() != nil {
			t.Errorf("%s: it did not happen", name)
		}
	}
}
