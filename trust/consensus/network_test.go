//go:build long && linux

package consensus_test

import (
	"bytes"
	"io"
	"net"
	"strings"
	"sync"
	"testing"
)

// network is the network between the members of a cluster: each connection to a member goes
// through it.
type network struct {
	mu    sync.Mutex
	cut   string // the id of the member that is cut off; empty: none
	conns map[*road]bool
	ids   map[string]string // of members, by the address of the member
}

// road is one connection.
type road struct {
	from, to string // ids
	ends     [2]net.Conn
}

func (r *road) close() {
	for _, end := range r.ends {
		_ = end.Close()
	}
}

func newNetwork() *network {
	return &network{conns: map[*road]bool{}, ids: map[string]string{}}
}

// listen has each connection to a new address served, in a goroutine.
func listen(t *testing.T, serve func(net.Conn)) (addr string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go serve(conn)
		}
	}()
	return l.Addr().String()
}

// lead has a new address lead to a member's.
func (n *network) lead(t *testing.T, to string) (addr string) {
	t.Helper()
	return listen(t, func(conn net.Conn) { n.carry(conn, to) })
}

// carry carries one connection. Its first request says which member it is from.
func (n *network) carry(conn net.Conn, to string) {
	defer conn.Close()
	head := make([]byte, 0, 4096)
	for !bytes.Contains(head, []byte("\r\n\r\n")) {
		got, err := conn.Read(head[len(head):cap(head)])
		if head = head[:len(head)+got]; err != nil || len(head) == cap(head) {
			return
		}
	}
	_, from, _ := strings.Cut(string(head), "X-Server-From: ")
	from, _, _ = strings.Cut(from, "\r\n")
	peer, err := net.Dial("tcp", to)
	if err != nil {
		return
	}
	r := &road{from: from, ends: [2]net.Conn{conn, peer}}
	n.mu.Lock()
	r.to = n.ids[to]
	open := n.cut == "" || r.from != n.cut && r.to != n.cut
	if open {
		n.conns[r] = true
	}
	n.mu.Unlock()
	defer func() {
		r.close()
		n.mu.Lock()
		defer n.mu.Unlock()
		delete(n.conns, r)
	}()
	if !open {
		return
	}
	if _, err := peer.Write(head); err != nil {
		return
	}
	back := make(chan struct{})
	go func() {
		defer close(back)
		_, _ = io.Copy(conn, peer)
		r.close()
	}()
	_, _ = io.Copy(peer, conn)
	r.close()
	<-back
}

// cutOff has no message pass between a member and the others, in either direction. An empty id
// ends that.
func (n *network) cutOff(id string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.cut = id
	for r := range n.conns {
		if id != "" && (r.from == id || r.to == id) {
			r.close()
		}
	}
}
