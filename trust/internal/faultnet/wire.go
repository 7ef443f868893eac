package faultnet

import (
	"bytes"
	"context"
	"errors"
	"math/rand/v2"
	"net"
	"sync"

	"github.com/redis/go-redis/v9"
)

// Kind says what a request of a lock is for.
type Kind string

// The kinds of requests.
const (
	Acquire Kind = "acquire"
	Renew   Kind = "renew"
	Release Kind = "release"
	Other   Kind = "" // what sets a connection up, and what is not the lock's
)

// Fate is what happens to a request or a reply.
type Fate int

// The fates.
const (
	Pass    Fate = iota
	Break        // it is lost, and its connection with it
	Swallow      // it is lost, and nobody notices
)

// ErrLost is what a connection answers that the test has broken.
var ErrLost = &net.OpError{Op: "read", Net: "tcp", Err: errors.New("lost by the test")}

// Wire is a dialer whose connections fail on command. The zero value passes
// everything. It is safe for concurrent use.
type Wire struct {
	mu      sync.Mutex
	conns   map[*conn]struct{}
	to      string
	refuse  bool
	request func(Kind) Fate
	reply   func(Kind, []byte) Fate
}

// Through makes a client dial over the wire.
func (w *Wire) Through(o *redis.Options) { o.Dialer = w.dial }

// Lead has new connections go to another address than they ask for, as a virtual
// address does that moves in a failover.
func (w *Wire) Lead(addr string) { w.locked(func() { w.to = addr }) }

// Refuse has new connections refused, or allowed again.
func (w *Wire) Refuse(refuse bool) { w.locked(func() { w.refuse = refuse }) }

// Requests decides the fate of each request; nil passes all.
func (w *Wire) Requests(f func(Kind) Fate) { w.locked(func() { w.request = f }) }

// Replies decides the fate of what comes back after a request of a kind; nil passes
// all. The function may wait.
func (w *Wire) Replies(f func(Kind, []byte) Fate) { w.locked(func() { w.reply = f }) }

// Lose has this share of all requests, and of all replies, be lost with their
// connections.
func (w *Wire) Lose(share float64) {
	lot := func(k Kind) Fate {
		if k != Other && rand.Float64() < share {
			return Break
		}
		return Pass
	}
	w.Requests(lot)
	w.Replies(func(k Kind, _ []byte) Fate { return lot(k) })
}

// Break ends all connections that there are.
func (w *Wire) Break() {
	w.locked(func() {
		for c := range w.conns {
			_ = c.Conn.Close()
		}
	})
}

func (w *Wire) locked(f func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	f()
}

func (w *Wire) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	w.mu.Lock()
	refuse, to := w.refuse, w.to
	w.mu.Unlock()
	if refuse {
		return nil, &net.OpError{Op: "dial", Net: network, Err: errors.New("connection refused by the test")}
	}
	if to != "" {
		addr = to
	}
	cn, err := (&net.Dialer{}).DialContext(ctx, network, addr)
	if err != nil {
		return nil, err
	}
	c := &conn{Conn: cn, wire: w}
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

	mu   sync.Mutex
	last Kind // of the last request
}

// Write implements net.Conn. It may lose a request, which is then never executed.
func (c *conn) Write(p []byte) (int, error) {
	k := kindOf(p)
	c.mu.Lock()
	c.last = k
	c.mu.Unlock()
	c.wire.mu.Lock()
	f := c.wire.request
	c.wire.mu.Unlock()
	if f != nil {
		switch f(k) {
		case Break:
			_ = c.Conn.Close()
			return 0, ErrLost
		case Swallow:
			return len(p), nil
		case Pass:
		}
	}
	return c.Conn.Write(p)
}

// Read implements net.Conn. It may lose a reply: what was asked has been executed.
func (c *conn) Read(p []byte) (int, error) {
	for {
		n, err := c.Conn.Read(p)
		if err != nil {
			return n, err
		}
		c.mu.Lock()
		k := c.last
		c.mu.Unlock()
		c.wire.mu.Lock()
		f := c.wire.reply
		c.wire.mu.Unlock()
		fate := Pass
		if f != nil {
			fate = f(k, p[:n])
		}
		switch fate {
		case Pass:
			return n, nil
		case Break:
			_ = c.Conn.Close()
			return 0, ErrLost
		case Swallow:
		}
	}
}

// Close implements net.Conn.
func (c *conn) Close() error {
	c.wire.locked(func() { delete(c.wire.conns, c) })
	if err := c.Conn.Close(); !errors.Is(err, net.ErrClosed) {
		return err
	}
	return nil // by the test
}

// kindOf tells a request by what is in it: a release publishes, on a channel that it
// names or the script does, an acquire has the fence, a renewal neither. A proposal
// of a quorum is an acquire, a withdrawal a release.
func kindOf(p []byte) Kind {
	switch {
	case !bytes.Contains(p, []byte("evalsha")) && !bytes.Contains(p, []byte("eval\r\n")):
		return Other
	case bytes.Contains(p, []byte("}:free")), bytes.Contains(p, []byte("PUBLISH\r\n")):
		return Release
	case bytes.Contains(p, []byte("}:fence")):
		return Acquire
	default:
		return Renew
	}
}
