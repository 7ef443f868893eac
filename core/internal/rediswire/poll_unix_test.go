//go:build unix

package rediswire

import (
	"net"
	"syscall"
	"testing"
	"time"
)

// twoEnds returns the two ends of a connection, the first as the store has it.
func twoEnds(t *testing.T) (*conn, net.Conn) {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = ln.Close() }()
	here, err := net.Dial("tcp", ln.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	there, err := ln.Accept()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = here.Close(), there.Close() })
	raw, err := here.(syscall.Conn).SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	c := &conn{Conn: here, raw: raw, link: new(link)}
	c.link.poll.init()
	c.link.poll.never = false
	return c, there
}

func TestPollingReadsWhatIsThereAndStopsWhereNothingComes(t *testing.T) {
	c, there := twoEnds(t)
	b := make([]byte, 10)
	c.link.poll.on = true
	if n := c.link.poll.read(c.raw, b); n != 0 {
		t.Fatalf("%d bytes of nothing", n)
	}
	if _, err := there.Write([]byte("+OK\r\n")); err != nil {
		t.Fatal(err)
	}
	polled := 0
	for polled == 0 { // it may still be on its way
		polled = c.link.poll.read(c.raw, b)
	}
	if polled != 5 {
		t.Fatalf("%d bytes were read by polling", polled)
	}
	// What comes later, and the end of the connection, are the ordinary read's.
	time.AfterFunc(20*pollLimit, func() { _, _ = there.Write([]byte("+OK\r\n")) })
	if n, err := c.Read(b); n != 5 || err != nil {
		t.Fatalf("%d bytes, %v", n, err)
	}
	_ = there.Close()
	if n, err := c.Read(b); n != 0 || err == nil {
		t.Errorf("%d bytes, %v from a connection that has ended", n, err)
	}
}
