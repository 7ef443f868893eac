//go:build integration

package quorum_test

import (
	"bytes"
	"context"
	"errors"
	"math/rand/v2"
	"net"
	"sync"
	"sync/atomic"

	"github.com/redis/go-redis/v9"
)

// wire is a dialer to one node. A test can make its connections fail.
type wire struct {
	mu    sync.Mutex
	conns map[*wireConn]struct{}
	cut   bool
	loss  float64 // of requests and replies, each
}

func newWire() *wire { return &wire{conns: map[*wireConn]struct{}{}} }

// through makes a client dial over the wire.
func (w *wire) through(o *redis.Options) { o.Dialer = w.dial }

func (w *wire) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	w.mu.Lock()
	cut := w.cut
	w.mu.Unlock()
	if cut {
		return nil, &net.OpError{Op: "dial", Net: network, Err: errors.New("cut off by the test")}
	}
	cn, err := (&net.Dialer{}).DialContext(ctx, network, addr)
	if err != nil {
		return nil, err
	}
	c := &wireConn{Conn: cn, wire: w}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.cut { // meanwhile
		_ = cn.Close()
		return nil, errLost
	}
	w.conns[c] = struct{}{}
	return c, nil
}

// sever cuts the node off, or lets it be reached again.
func (w *wire) sever(cut bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.cut = cut
	if cut {
		for c := range w.conns {
			_ = c.Conn.Close()
		}
	}
}

// lose has messages be lost from now on; a lost message takes its connection along, as
// over TCP.
func (w *wire) lose(share float64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.loss = share
}

func (w *wire) lost() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.loss > 0 && rand.Float64() < w.loss
}

type wireConn struct {
	net.Conn
	wire *wire
	used atomic.Bool // what comes before the first request, to set it up, is not lost
}

var errLost = &net.OpError{Op: "read", Err: errors.New("lost by the test")}

// Write may lose a request: it is never executed.
func (c *wireConn) Write(p []byte) (int, error) {
	if bytes.Contains(p, []byte("evalsha")) {
		c.used.Store(true)
	}
	if c.used.Load() && c.wire.lost() {
		_ = c.Conn.Close()
		return 0, errLost
	}
	return c.Conn.Write(p)
}

// Read may lose a reply: the request has been executed.
func (c *wireConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if err == nil && c.used.Load() && c.wire.lost() {
		_ = c.Conn.Close()
		return 0, errLost
	}
	return n, err
}

func (c *wireConn) Close() error {
	c.wire.mu.Lock()
	delete(c.wire.conns, c)
	c.wire.mu.Unlock()
	if err := c.Conn.Close(); !errors.Is(err, net.ErrClosed) {
		return err
	}
	return nil // by the test
}
