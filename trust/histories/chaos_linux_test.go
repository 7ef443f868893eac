//go:build long

package histories

import (
	"context"
	"errors"
	"net"
	"sync"
	"sync/atomic"
	"time"
)

// network is the way from a process to its servers, as that process sees it.
type network struct {
	lose atomic.Int64 // replies to be lost

	mu    sync.Mutex
	over  chan struct{} // closed at the end of the cut
	holed map[*link]bool
}

var errCut = errors.New("connection reset: the network was cut")

// cut makes the network swallow everything for a time. Cuts do not overlap.
func (n *network) cut(d time.Duration) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.over != nil {
		return
	}
	over := make(chan struct{})
	n.over = over
	time.AfterFunc(d, func() {
		n.mu.Lock()
		holed := n.holed
		n.over, n.holed = nil, nil
		n.mu.Unlock()
		close(over)
		// A connection that has lost a part of its stream cannot go on.
		for l := range holed {
			_ = l.Close() // its user meets the error
		}
	})
}

// swallows reports whether data that l sends or receives now is lost.
func (n *network) swallows(l *link) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.over == nil {
		return false
	}
	if n.holed == nil {
		n.holed = make(map[*link]bool)
	}
	n.holed[l] = true
	return true
}

// dial connects to the address that resolve gives.
func (n *network) dial(resolve func(string) string) func(context.Context, string, string) (net.Conn, error) {
	return func(ctx context.Context, kind, addr string) (net.Conn, error) {
		n.mu.Lock()
		over := n.over
		n.mu.Unlock()
		if over != nil {
			select {
			case <-over:
			case <-ctx.Done():
				return nil, ctx.Err()
			}
		}
		conn, err := (&net.Dialer{Timeout: time.Second}).DialContext(ctx, kind, resolve(addr))
		if err != nil {
			return nil, err
		}
		return &link{conn, n}, nil
	}
}

// link is a connection.
type link struct {
	net.Conn
	network *network
}

// Write implements net.Conn. After a cut it seems to work.
func (l *link) Write(p []byte) (int, error) {
	if l.network.swallows(l) {
		return len(p), nil
	}
	return l.Conn.Write(p)
}

// Read implements net.Conn. A reply that is lost was sent: the request was
// executed.
func (l *link) Read(p []byte) (int, error) {
	for {
		n, err := l.Conn.Read(p)
		if err != nil {
			return n, err
		}
		if l.network.swallows(l) {
			continue // until the deadline, or the end of the cut
		}
		if left := l.network.lose.Load(); left > 0 && l.network.lose.CompareAndSwap(left, left-1) {
			return 0, errors.Join(errCut, l.Close())
		}
		return n, nil
	}
}
