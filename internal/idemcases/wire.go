package idemcases

import (
	"bytes"
	"context"
	"io"
	"net"
	"sync"
)

// Wire is the way from a client to a server. It loses replies on command, as a connection
// does that breaks after the server has carried out a request. The zero value is ready.
type Wire struct {
	// Counts says which writes of a client [Wire.Sent] counts; nil: all.
	Counts func(written []byte) bool

	mu        sync.Mutex
	asked     string // in the request that loses its reply
	said      string // in the reply that is to be lost
	sent      int64
	lostSince int
}

// LoseReply loses the next reply that has a text in it. It takes back earlier orders, and
// sets [Wire.Lost] to 0. An empty text loses nothing.
func (w *Wire) LoseReply(text string) { w.lose("", text) }

// LoseReplyTo is as [Wire.LoseReply] for the reply to the next request that has a text.
func (w *Wire) LoseReplyTo(text string) { w.lose(text, "") }

func (w *Wire) lose(asked, said string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.asked, w.said, w.lostSince = asked, said, 0
}

// Lost is how many replies were lost since the last call that asked for it.
func (w *Wire) Lost() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.lostSince
}

// Sent is how often the client has written.
func (w *Wire) Sent() int64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.sent
}

// Dial connects to a server. Drivers take it as their function for that.
func (w *Wire) Dial(ctx context.Context, network, addr string) (net.Conn, error) {
	conn, err := (&net.Dialer{}).DialContext(ctx, network, addr)
	if err != nil {
		return nil, err
	}
	return &lossy{Conn: conn, wire: w}, nil
}

// lossy is a connection of a wire.
type lossy struct {
	net.Conn
	wire *Wire
	deaf bool // the next reply is lost; the wire's mutex guards it
}

func (c *lossy) Write(b []byte) (int, error) {
	w := c.wire
	w.mu.Lock()
	if w.Counts == nil || w.Counts(b) {
		w.sent++
	}
	if w.asked != "" && bytes.Contains(b, []byte(w.asked)) {
		w.asked, c.deaf = "", true
	}
	w.mu.Unlock()
	return c.Conn.Write(b)
}

// Read returns an error in place of the reply that is to be lost, and closes the
// connection.
func (c *lossy) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	w := c.wire
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.said != "" && bytes.Contains(b[:n], []byte(w.said)) {
		w.said, c.deaf = "", true
	}
	if n == 0 || !c.deaf {
		return n, err
	}
	c.deaf = false
	w.lostSince++
	_ = c.Close()
	return 0, io.ErrUnexpectedEOF
}
