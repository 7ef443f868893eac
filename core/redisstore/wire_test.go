//go:build integration

package redisstore_test

import (
	"bytes"
	"context"
	"errors"
	"net"
	"sync"
	"sync/atomic"

	"github.com/redis/go-redis/v9"
)

// wire is a dialer. A test can make its connections fail.
type wire struct {
	mu      sync.Mutex
	conns   map[*wireConn]struct{}
	onReply func(reply []byte) error // may hold a reply back, or lose it
	refuse  bool
	lost    atomic.Int64 // replies
}

func newWire() *wire { return &wire{conns: map[*wireConn]struct{}{}} }

// through makes a client dial over the wire.
func (w *wire) through(o *redis.Options) { o.Dialer = w.dial }

func (w *wire) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	conn, err := (&net.Dialer{}).DialContext(ctx, network, addr)
	if err != nil {
		return nil, err
	}
	c := &wireConn{Conn: conn, wire: w, closed: make(chan struct{})}
	w.mu.Lock()
	defer w.mu.Unlock()
	// Asked only now: a dial that was under way during a cut must not outlive it.
	if w.refuse {
		_ = conn.Close()
		return nil, &net.OpError{Op: "dial", Net: network, Err: errors.New("connection refused by the test")}
	}
	w.conns[c] = struct{}{}
	return c, nil
}

// cut breaks all connections and refuses new ones.
func (w *wire) cut() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.refuse = true
	for c := range w.conns {
		_ = c.Conn.Close()
	}
}

// mend lets connections be made again.
func (w *wire) mend() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.refuse = false
}

// replies sets what happens to each chunk that comes back from the server.
func (w *wire) replies(f func(reply []byte) error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.onReply = f
}

// lose has the connection of the next reply break in place of it, and of no other.
func (w *wire) lose() {
	var once atomic.Bool
	w.replies(func([]byte) error {
		if once.Swap(true) {
			return nil
		}
		return w.loss()
	})
}

// loss is the error of a reply that is lost.
func (w *wire) loss() error {
	w.lost.Add(1)
	return &net.OpError{Op: "read", Err: errors.New("reply lost by the test")}
}

type wireConn struct {
	net.Conn
	wire   *wire
	closed chan struct{}
}

func (c *wireConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	c.wire.mu.Lock()
	onReply := c.wire.onReply
	c.wire.mu.Unlock()
	if err != nil || onReply == nil {
		return n, err
	}
	reply := bytes.Clone(p[:n])
	select {
	case err := <-later(func() error { return onReply(reply) }):
		if err != nil {
			_ = c.Conn.Close()
			return 0, err
		}
		return n, nil
	case <-c.closed: // a read ends when its connection is closed
		return 0, net.ErrClosed
	}
}

func (c *wireConn) Close() error {
	c.wire.mu.Lock()
	if _, open := c.wire.conns[c]; open {
		close(c.closed)
	}
	delete(c.wire.conns, c)
	c.wire.mu.Unlock()
	return c.Conn.Close()
}
