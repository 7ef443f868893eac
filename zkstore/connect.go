package zkstore

import (
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/interlock-go/interlock/core/driver"
)

const (
	// session is the session timeout that is asked for; the server allows no less than two
	// of its ticks, by default 4 s. A member that hangs is noticed after two thirds of it.
	// Nothing else rests on it: the locks have no part in the session.
	session = 3 * time.Second
	// firstGreeting and lastGreeting bound how long a member may take to greet: more with each
	// member that hangs.
	firstGreeting = 500 * time.Millisecond
	lastGreeting  = 10 * time.Second
	// round is the pause before all members are tried again.
	round = 50 * time.Millisecond
	// giveUp is after what time without a connection the client drops its requests, and looks
	// whether it was closed. Then it waits for a second: longer than an election should last.
	giveUp = 3 * time.Second
)

// Connect makes a connection to the members of an ensemble, each host:port, for [New]. The
// client's own zk.Connect waits long for a member that hangs, and a second after each round
// of members without a leader; a connection of Connect waits half a second, and 50 ms. dial
// makes connections, with TLS for example; nil is net.DialTimeout. Connect sends nothing:
// the connection is made in the background. It returns driver.ErrConfig if there are no
// servers. Credentials are added with conn.AddAuth. Close the connection after the store.
func Connect(servers []string, dial zk.Dialer) (*zk.Conn, error) {
	if dial == nil {
		dial = net.DialTimeout
	}
	h := &hosts{dial: dial, greeting: firstGreeting}
	conn, _, err := zk.Connect(servers, session, zk.WithDialer(h.connect), zk.WithHostProvider(h), zk.WithLogInfo(false), zk.WithLogger(quiet{}))
	if err != nil {
		return nil, fmt.Errorf("%w: %w", driver.ErrConfig, err)
	}
	return conn, nil
}

// quiet leaves out what the client logs at each try: the store says what fails.
type quiet struct{}

func (quiet) Printf(string, ...any) {}

// hosts chooses the member that is tried next.
type hosts struct {
	dial zk.Dialer

	mu       sync.Mutex
	servers  []string
	next     int
	tries    int       // since the last connection
	since    time.Time // the first of them, or when the client dropped its requests
	greeting time.Duration
}

// Init implements [zk.HostProvider].
func (h *hosts) Init(servers []string) error {
	h.servers = servers
	return nil
}

// Len implements [zk.HostProvider].
func (h *hosts) Len() int { return len(h.servers) }

// Next implements [zk.HostProvider].
func (h *hosts) Next() (server string, again bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	server = h.servers[h.next]
	h.next = (h.next + 1) % len(h.servers)
	n := h.tries
	if h.tries++; n == 0 {
		h.since = time.Now()
	}
	switch {
	case n == 0 || n%len(h.servers) > 0:
		return server, false
	case time.Since(h.since) >= giveUp:
		h.since = time.Now()
		return server, true
	}
	h.mu.Unlock()
	time.Sleep(round)
	h.mu.Lock()
	return server, false
}

// Connected implements [zk.HostProvider].
func (h *hosts) Connected() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.tries, h.greeting = 0, firstGreeting
}

// connect connects to a member. A member that is stopped takes connections, and never
// greets. A member without a leader closes them at once.
func (h *hosts) connect(network, address string, timeout time.Duration) (net.Conn, error) {
	conn, err := h.dial(network, address, timeout)
	if err != nil {
		return nil, err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	return &greeted{Conn: conn, hangs: h.hangs, until: time.Now().Add(h.greeting)}, nil
}

// hangs notes that a member did not greet in time.
func (h *hosts) hangs() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.greeting = min(2*h.greeting, lastGreeting)
}

// greeted is a connection whose first answer has to come in time.
type greeted struct {
	net.Conn
	hangs func()
	mu    sync.Mutex
	until time.Time // zero after the first answer
}

func (c *greeted) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case n > 0:
		c.until = time.Time{}
	case errors.Is(err, os.ErrDeadlineExceeded) && !c.until.IsZero():
		c.hangs()
	}
	return n, err
}

func (c *greeted) SetReadDeadline(t time.Time) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.until.IsZero() && (t.IsZero() || t.After(c.until)) {
		t = c.until
	}
	return c.Conn.SetReadDeadline(t)
}
