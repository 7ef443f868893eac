//go:build integration

package redisstore_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"net"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/interlock-go/interlock/core/idempotency/record"
)

// gapConn calls a function, once, after the server has answered a claim and before it gets
// the next command in the same pipeline. If the function returns an error, the connection
// breaks after the claim's reply.
type gapConn struct {
	net.Conn
	gap    *func() error
	reply  []byte // to the claim
	broken error
}

func (c *gapConn) Write(p []byte) (int, error) {
	at := bytes.Index(p, []byte("*4\r\n$5\r\nhmget"))
	if at < 0 || *c.gap == nil {
		return c.Conn.Write(p)
	}
	if n, err := c.Conn.Write(p[:at]); err != nil {
		return n, err
	}
	room := make([]byte, 4096)
	n, err := c.Conn.Read(room)
	if err != nil {
		return at, err
	}
	c.reply, c.broken = room[:n], (*c.gap)()
	if *c.gap = nil; c.broken != nil {
		return len(p), nil
	}
	n, err = c.Conn.Write(p[at:])
	return at + n, err
}

func (c *gapConn) Read(p []byte) (int, error) {
	if len(c.reply) > 0 {
		n := copy(p, c.reply)
		c.reply = c.reply[n:]
		return n, nil
	}
	if c.broken != nil {
		return 0, c.broken
	}
	return c.Conn.Read(p)
}

// Things happen between a claim and the next command, which brings the response.
func TestAResponseIsTheOneThatTheClaimHasFound(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		gap  func(w *world) error
		want record.ClaimReply
	}{
		"the record is gone": {
			func(w *world) error { return w.rdb.Del(t.Context(), w.record("k")).Err() },
			record.ClaimReply{State: record.StateGranted, Generation: 1},
		},
		"it is another answer's": {
			func(w *world) error {
				w.rdb.Del(t.Context(), w.record("k"))
				w.complete(w.store(), "k", "second")
				return nil
			},
			record.ClaimReply{State: record.StateCompleted, Response: "second"},
		},
		"it is another request's": {
			func(w *world) error {
				other := sha256.Sum256([]byte("other"))
				return w.rdb.HSet(t.Context(), w.record("k"), "t", "b", "f", other[:]).Err()
			},
			record.ClaimReply{State: record.StateMismatch},
		},
		"the connection breaks": {
			func(*world) error { return net.ErrClosed },
			record.ClaimReply{State: record.StateCompleted, Response: "first"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := common(t)
			var gap func() error
			s := w.store(func(o *redis.Options) {
				o.Dialer = func(ctx context.Context, network, addr string) (net.Conn, error) {
					conn, err := (&net.Dialer{}).DialContext(ctx, network, addr)
					return &gapConn{Conn: conn, gap: &gap}, err
				}
			})
			w.complete(s, "k", "first")
			gap = func() error { return c.gap(w) }
			rep, err := s.Claim(t.Context(), w.claim("k", "c"))
			got := record.ClaimReply{State: rep.State, Generation: rep.Generation, Response: rep.Response}
			if err != nil || got != c.want {
				t.Errorf("%+v, %v; want %+v", rep, err, c.want)
			}
			if gap != nil {
				t.Error("it did not happen")
			}
		})
	}
}
