package faultnet

import (
	"context"
	"net"
	"sync"

	"github.com/redis/go-redis/v9"
)

// Wire is a dialer with connections that can be led elsewhere. The zero value passes
// everything. It is safe for concurrent use.
type Wire struct {
	mu    sync.Mutex
	conns map[*conn]struct{}
	to    string
}

// Through makes a client dial over the wire.
func (w *Wire) Through(o *redis.Options) { o.Dialer = w.dial }

// Lead has new connections go to another address than they ask for, as a virtual
// address does that moves in a failover.
func (w *Wire) Lead(addr string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.to = addr
}

// Break ends all connections that there are.
func (w *Wire) Break() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for c := range w.conns {
		_ = c.Conn.Close()
	}
}

func (w *Wire) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	w.mu.Lock()
	if w.to != "" {
		addr = w.to
	}
	w.mu.Unlock()
	cn, err := (&net.Dialer{}).DialContext(ctx, network, addr)
	if err != nil {
		return nil, err
	}
	c := &conn{cn, w}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.conns == nil {
		w.conns = make(map[*conn]struct{})
	}
	w.conns[c] = struct{}{}
	return c, nil
}

// conn is one connection over the wire.
type conn struct {
	net.Conn
	wire *Wire
}

// Close implements net.Conn.
func (c *conn) Close() error {
	c.wire.mu.Lock()
	delete(c.wire.conns, c)
	c.wire.mu.Unlock()
	return c.Conn.Close()
}
