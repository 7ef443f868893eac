package main

import (
	"bytes"
	"context"
	"net"
	"regexp"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/interlock-go/interlock/core/observe"
)

// gauge counts the work under way at the same time.
type gauge struct {
	mu               sync.Mutex
	now, most, above int // above partnerLimit
}

// enter is called at the beginning, and leave at the end.
func (g *gauge) enter() (leave func()) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.now++
	g.most = max(g.most, g.now)
	if g.now > partnerLimit {
		g.above++
	}
	return func() {
		g.mu.Lock()
		defer g.mu.Unlock()
		g.now--
	}
}

// reset resets the counts, and returns them as they were.
func (g *gauge) reset() (most, above int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	most, above = g.most, g.above
	g.most, g.above = g.now, 0
	return most, above
}

// commandCounter counts the commands that this process sends to Redis. It reads the
// output of the process on its connections. The count of the server would include
// the calls of scripts and the commands of other processes.
type commandCounter struct{ atomic.Int64 }

// dial is a redis.Options.Dialer.
func (c *commandCounter) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	conn, err := (&net.Dialer{Timeout: 5 * time.Second}).DialContext(ctx, network, addr)
	if err != nil {
		return nil, err
	}
	return &countedConn{conn, c}, nil
}

type countedConn struct {
	net.Conn
	counter *commandCounter
}

// commandHead is the beginning of a command: how many arguments it has, and its name. No
// value of the bank or the locks has such a text.
var commandHead = regexp.MustCompile(`\*\d+\r\n\$\d+\r\n(\w+)\r\n`)

// setup are the commands that only set up a connection.
var setup = []string{"hello", "auth", "client", "select", "readonly", "cluster", "command", "script", "ping"}

func (c *countedConn) Write(p []byte) (int, error) {
	for _, head := range commandHead.FindAllSubmatch(p, -1) {
		if !slices.Contains(setup, string(bytes.ToLower(head[1]))) {
			c.counter.Add(1)
		}
	}
	return c.Conn.Write(p)
}

// NetConn returns the socket, which go-redis probes before it reuses a connection.
func (c *countedConn) NetConn() net.Conn { return c.Conn }

// waits is an observe.Observer that notes how long each request waited for its lock, by
// the lock's kind.
type waits struct {
	mu  sync.Mutex
	all map[string][]time.Duration
}

// Start implements observe.Observer.
func (w *waits) Start(ctx context.Context, op observe.Operation) (context.Context, observe.Observation) {
	return ctx, observe.Observation{Acquired: func(a observe.Acquired) {
		w.mu.Lock()
		defer w.mu.Unlock()
		if w.all == nil {
			w.all = make(map[string][]time.Duration)
		}
		w.all[op.Kind] = append(w.all[op.Kind], a.Waited)
	}}
}

// reset forgets the times, and returns the times of a kind, sorted.
func (w *waits) reset(kind string) []time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	sorted := slices.Sorted(slices.Values(w.all[kind]))
	clear(w.all)
	return sorted
}
