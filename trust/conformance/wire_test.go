//go:build unix

package conformance

import (
	"bytes"
	"context"
	"io"
	"net"
	"sync"
	"sync/atomic"
)

// wire counts what is sent to PostgreSQL, and loses replies on command.
type wire struct {
	sent atomic.Int64

	mu     sync.Mutex
	marker string
	lost   int
}

// lose loses the reply to the next request that has a text, and breaks its connection.
func (w *wire) lose(marker string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.marker, w.lost = marker, 0
}

func (w *wire) losses() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.lost
}

func (w *wire) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	conn, err := (&net.Dialer{}).DialContext(ctx, network, addr)
	if err != nil {
		return nil, err
	}
	return &lossy{Conn: conn, wire: w}, nil
}

// lossy is a connection of a wire.
type lossy struct {
	net.Conn
	wire *wire
	deaf atomic.Bool // the next reply is lost
}

// ping is what the driver sends to find out whether a connection is alive.
const ping = "-- ping\x00"

// Write sends a request, or the start of a session, which begins with its length.
func (c *lossy) Write(b []byte) (int, error) {
	if len(b) > 0 && b[0] != 0 && !bytes.HasSuffix(b, []byte(ping)) {
		c.wire.sent.Add(1)
	}
	c.wire.mu.Lock()
	if c.wire.marker != "" && bytes.Contains(b, []byte(c.wire.marker)) {
		c.wire.marker = ""
		c.deaf.Store(true)
	}
	c.wire.mu.Unlock()
	return c.Conn.Write(b)
}

func (c *lossy) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if err != nil || n == 0 || !c.deaf.CompareAndSwap(true, false) {
		return n, err
	}
	c.wire.mu.Lock()
	c.wire.lost++
	c.wire.mu.Unlock()
	_ = c.Close()
	return 0, io.ErrUnexpectedEOF
}
