package zkstore

import (
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
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
	// giveUp is the time without a connection after which the client drops its requests, and
	// looks whether it was closed. Then it waits for a second: longer than an election should
	// last.
	giveUp = 3 * time.Second
)

// Conn is a connection to ZooKeeper that [Connect] has made: a connection of the client, which
// also knows why it has no session.
type Conn struct {
	*zk.Conn
	hosts  *hosts
	events *events
}

func (c *Conn) listen(w *watching) (stop func()) { return c.events.listen(w) }

// absent is the error of a request for which there is no session. It wraps nothing, since logs
// have the root cause (observe.RootCause).
func (c *Conn) absent() error {
	text := "no session with ZooKeeper"
	if c.hosts != nil {
		text += c.hosts.troubles()
	}
	return errors.New(text)
}

// Connect makes a connection to the members of an ensemble, each host:port, for [New]. The
// client's own zk.Connect waits long for a member that hangs, and a second after each round
// of members without a leader; a connection of Connect waits half a second, and 50 ms. dial
// makes connections, with TLS for example; nil is net.DialTimeout. Connect sends nothing:
// the connection is made in the background. It returns driver.ErrConfig if there are no
// servers, or an address is not host:port, such as an address with a path (chroot).
// Credentials are added with conn.AddAuth. Close the connection after the store.
func Connect(servers []string, dial zk.Dialer) (*Conn, error) {
	if dial == nil {
		dial = net.DialTimeout
	}
	for _, server := range zk.FormatServers(servers) {
		host, port, err := net.SplitHostPort(server)
		if _, wrong := strconv.ParseUint(port, 10, 16); err != nil || wrong != nil || host == "" || strings.Contains(host, "/") {
			return nil, fmt.Errorf("%w: server %q is not host:port; a path in ZooKeeper is set by casstore.Prefix", driver.ErrConfig, server)
		}
	}
	h := &hosts{dial: dial, greeting: firstGreeting, trouble: map[string]string{}}
	e := &events{to: map[string]map[*watching]bool{}}
	conn, _, err := zk.Connect(servers, session, zk.WithDialer(h.connect), zk.WithHostProvider(h), zk.WithLogInfo(false), zk.WithLogger(quiet{}),
		zk.WithEventCallback(e.pass))
	if err != nil {
		return nil, fmt.Errorf("%w: %w", driver.ErrConfig, err)
	}
	return &Conn{Conn: conn, hosts: h, events: e}, nil
}

// quiet leaves out the client's log of each try: the store reports failures.
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
	trouble  map[string]string // why there is no connection, by server
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
	clear(h.trouble)
}

// fails notes why there is no connection to a server.
func (h *hosts) fails(server, why string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.trouble[server] = why
}

// troubles says why there is no connection, for each server.
func (h *hosts) troubles() (text string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, server := range h.servers {
		if why := h.trouble[server]; why != "" {
			text += "; " + server + ": " + why
		}
	}
	return text
}

// connect connects to a member. A member that is stopped takes connections, and never
// greets. A member without a leader closes them at once.
func (h *hosts) connect(network, address string, timeout time.Duration) (net.Conn, error) {
	conn, err := h.dial(network, address, timeout)
	if err != nil {
		h.fails(address, err.Error())
		return nil, err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	return &greeted{Conn: conn, hosts: h, server: address, until: time.Now().Add(h.greeting)}, nil
}

// hangs notes that a member did not greet in time.
func (h *hosts) hangs() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.greeting = min(2*h.greeting, lastGreeting)
}

// greeted is a connection with a time limit for the first answer.
type greeted struct {
	net.Conn
	hosts  *hosts
	server string
	mu     sync.Mutex
	until  time.Time // zero after the first answer
}

func (c *greeted) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case n > 0:
		c.until = time.Time{}
	case err == nil || c.until.IsZero():
	case errors.Is(err, os.ErrDeadlineExceeded):
		c.hosts.hangs()
		c.hosts.fails(c.server, "it takes the connection, and does not greet: it hangs, or the port has TLS")
	default:
		c.hosts.fails(c.server, "it takes the connection, and closes it before it greets: it has no leader, or the port has TLS ("+err.Error()+")")
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
