package main

import (
	"bytes"
	"context"
	"net"
	"strings"
	"sync/atomic"
	"time"
)

// commandCounter counts the commands that this process sends to Redis. It reads what
// the process writes to its connections. The count of the server would include the
// calls of scripts and the commands of other processes.
type commandCounter struct{ n atomic.Int64 }

func (c *commandCounter) count() int64 { return c.n.Load() }

// dial is a redis.Options.Dialer.
func (c *commandCounter) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	conn, err := (&net.Dialer{Timeout: 5 * time.Second}).DialContext(ctx, network, addr)
	if err != nil {
		return nil, err
	}
	return &countedConn{Conn: conn, counter: c}, nil
}

// countedConn reads what the process writes to a connection. Writes to one connection
// do not overlap.
type countedConn struct {
	net.Conn
	counter *commandCounter
	requests
}

func (c *countedConn) Write(p []byte) (int, error) {
	c.counter.n.Add(c.read(p))
	return c.Conn.Write(p)
}

// NetConn returns the socket, which go-redis probes before it reuses a connection.
func (c *countedConn) NetConn() net.Conn { return c.Conn }

// requests follows a stream of Redis commands: "*<n>\r\n", then n times
// "$<length>\r\n<bytes>\r\n". It keeps its place between any two bytes.
type requests struct {
	line   []byte // the header or the command name that has begun
	skip   int    // bytes of an argument still to come, with its line end
	atName bool   // the next argument is a command's name
	inName bool   // what is being skipped is that name
}

// read takes the next bytes and returns how many commands began in them, not
// counting those that only set up a connection.
func (r *requests) read(p []byte) (commands int64) {
	for len(p) > 0 {
		if r.skip > 0 {
			n := min(r.skip, len(p))
			if r.inName {
				r.line = append(r.line, p[:n]...)
			}
			r.skip, p = r.skip-n, p[n:]
			if r.skip == 0 && r.inName {
				if !isSetup(string(bytes.TrimSpace(r.line))) {
					commands++
				}
				r.line, r.inName = r.line[:0], false
			}
			continue
		}
		end := bytes.IndexByte(p, '\n')
		if end < 0 {
			r.line = append(r.line, p...)
			return commands
		}
		r.line = append(r.line, p[:end]...)
		p = p[end+1:]
		r.header(bytes.TrimSuffix(r.line, []byte("\r")))
		r.line = r.line[:0]
	}
	return commands
}

func (r *requests) header(line []byte) {
	if len(line) == 0 {
		return
	}
	switch line[0] {
	case '*':
		r.atName = true
	case '$':
		n := 0
		for _, digit := range line[1:] {
			n = 10*n + int(digit-'0')
		}
		r.skip = n + len("\r\n")
		r.inName, r.atName = r.atName, false
	}
}

func isSetup(name string) bool {
	switch strings.ToLower(name) {
	case "hello", "auth", "client", "select", "readonly", "cluster", "command", "script":
		return true
	}
	return false
}
