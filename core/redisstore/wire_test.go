package redisstore_test

import (
	"bytes"
	"context"
	"errors"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
)

// wire is a dialer whose connections can be made to fail on command.
type wire struct {
	mu     sync.Mutex
	conns  map[*wireConn]struct{}
	onRead func(reply []byte) error // may hold a reply back, or lose it
	refuse bool
	dials  int
	slow   string
	slowBy time.Duration

	slowTimes int
}

func newWire() *wire { return &wire{conns: map[*wireConn]struct{}{}} }

// through makes a client dial over the wire.
func (w *wire) through(o *redis.Options) {
	o.Dialer = w.dial
}

func (w *wire) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	w.mu.Lock()
	w.dials++
	refuse := w.refuse
	w.mu.Unlock()
	if refuse {
		return nil, &net.OpError{Op: "dial", Net: network, Err: errors.New("connection refused by the test")}
	}
	cn, err := (&net.Dialer{}).DialContext(ctx, network, addr)
	if err != nil {
		return nil, err
	}
	c := &wireConn{Conn: cn, wire: w, closed: make(chan struct{})}
	w.mu.Lock()
	w.conns[c] = struct{}{}
	w.mu.Unlock()
	return c, nil
}

// cut breaks all connections and, if refuse is set, new ones too.
func (w *wire) cut(refuse bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.refuse = refuse
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
	w.onRead = f
}

type wireConn struct {
	net.Conn
	wire   *wire
	stall  atomic.Int64 // how long the next read waits before it looks
	closed chan struct{}
}

// stallAfter has the reading of the answers to what contains a text begin only
// after a while, that many times. What has come by then stays to be read.
func (w *wire) stallAfter(text string, d time.Duration, times int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.slow, w.slowBy, w.slowTimes = text, d, times
}

func (c *wireConn) Write(p []byte) (int, error) {
	c.wire.mu.Lock()
	if c.wire.slowTimes > 0 && bytes.Contains(bytes.ToLower(p), []byte(c.wire.slow)) {
		c.wire.slowTimes--
		c.stall.Store(int64(c.wire.slowBy))
	}
	c.wire.mu.Unlock()
	return c.Conn.Write(p)
}

func (c *wireConn) Read(p []byte) (int, error) {
	time.Sleep(time.Duration(c.stall.Swap(0)))
	n, err := c.Conn.Read(p)
	c.wire.mu.Lock()
	hook := c.wire.onRead
	c.wire.mu.Unlock()
	if err == nil && hook != nil {
		told, reply := make(chan error, 1), bytes.Clone(p[:n])
		go func() { told <- hook(reply) }()
		select {
		case lost := <-told:
			if lost != nil {
				_ = c.Conn.Close()
				return 0, lost
			}
		case <-c.closed: // a read ends when its connection is closed
			return 0, net.ErrClosed
		}
	}
	return n, err
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

// once loses the first reply that it sees, and then none.
func once() func([]byte) error {
	var mu sync.Mutex
	lost := false
	return func([]byte) error {
		mu.Lock()
		defer mu.Unlock()
		if lost {
			return nil
		}
		lost = true
		return &net.OpError{Op: "read", Err: errors.New("reply lost by the test")}
	}
}

// bounded is a context for what must not take long.
func bounded(d time.Duration) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.Background(), d)
}
