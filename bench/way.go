package main

import (
	"fmt"
	"io"
	"net"
	"runtime"
	"time"
)

// relay is the process that lies between the clients of a cell and their server. It
// passes data from one side to the other after the time of the way. It is a process
// apart, so that it delays no goroutine of a library. It ends with its parent.
func (c *child) relay() {
	// The sleep in between takes a processor of Go with it for a moment.
	runtime.GOMAXPROCS(runtime.NumCPU() + 2)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		quit(err)
	}
	go relayAll(listener, c.Addr, c.Way)
	fmt.Println(listener.Addr())
	_, _ = io.Copy(io.Discard, c.in) // until the parent closes it
}

// parcel is data on their way.
type parcel struct {
	to   net.Conn
	data []byte // nil: the connection ends
	due  time.Time
}

// relayAll relays the connections of a listener to a server until the listener is closed.
// The way takes the same time everywhere, so one queue has all that is due in order, and
// one goroutine delivers it: a timer for each connection would slow down the libraries that
// have many.
func relayAll(listener net.Listener, server string, way time.Duration) {
	parcels := make(chan parcel, 1<<16)
	go func() {
		punctual()
		for p := range parcels {
			occupy(time.Until(p.due))
			if p.data == nil {
				_ = p.to.Close() // its other side sees that
			} else {
				_, _ = p.to.Write(p.data) // after an error its reader ends, too
			}
		}
	}()
	carry := func(from, to net.Conn) {
		room := make([]byte, 64<<10)
		for {
			n, err := from.Read(room)
			if err != nil {
				parcels <- parcel{to, nil, time.Now().Add(way)}
				return
			}
			parcels <- parcel{to, append([]byte(nil), room[:n]...), time.Now().Add(way)}
		}
	}
	for {
		near, err := listener.Accept()
		if err != nil {
			return
		}
		far, err := net.Dial("tcp", server)
		if err != nil {
			_ = near.Close() // its client sees that
			continue
		}
		go carry(near, far)
		go carry(far, near)
	}
}
