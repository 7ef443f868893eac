package redisstore_test

import (
	"context"
	"errors"
	"net"
	"sync"
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
	c := &wireConn{Conn: cn, wire: w}
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
	wire *wire
}

func (c *wireConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	c.wire.mu.Lock()
	hook := c.wire.onRead
	c.wire.mu.Unlock()
	if err == nil && hook != nil {
		if lost := hook(p[:n]); lost != nil {
			_ = c.Conn.Close()
			return 0, lost
		}
	}
	return n, err
}

func (c *wireConn) Close() error {
	c.wire.mu.Lock()
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
