package main

import (
	"context"
	"strings"
	"sync"
	"time"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/driver"
	"github.com/interlock-go/interlock/internal/redistest"
)

// cluster is Redis servers in memory, each with its part of the slots. They do
// what the scripts of core/redisstore do, command by command, and count; the test
// compares them with a real server. Thousands of lockers on as many real
// connections would measure the machine and not the protocol.
type cluster []*memory

// oneWay is how long the way between a process and a server takes, before what
// the timer adds to it.
const oneWay = 100 * time.Microsecond

func newCluster(n int) cluster {
	c := make(cluster, n)
	for i := range c {
		c[i] = &memory{locks: map[string]*held{}, fences: map[string]fence{}, channels: map[string]map[*store]*channel{}}
	}
	return c
}

// memory is one server. Its mutex is its only thread.
type memory struct {
	mu       sync.Mutex
	locks    map[string]*held
	fences   map[string]fence
	channels map[string]map[*store]*channel
	count    counts
}

// counts is what a server has done.
type counts struct {
	requests, commands float64
	releases, messages float64
	granted, refused   float64
}

func (c counts) minus(o counts) counts {
	return counts{
		c.requests - o.requests, c.commands - o.commands, c.releases - o.releases,
		c.messages - o.messages, c.granted - o.granted, c.refused - o.refused,
	}
}

// counted is the sum of all servers.
func (c cluster) counted() (sum counts) {
	for _, m := range c {
		m.mu.Lock()
		sum = sum.minus(counts{}.minus(m.count))
		m.mu.Unlock()
	}
	return sum
}

type held struct {
	owner string
	token int64
	q     string
	until time.Time
}

type fence struct {
	token int64
	until time.Time
}

// channel is a process's subscription: it outlives its last watcher for a while.
type channel struct {
	watchers  map[*watcher]struct{}
	confirmed time.Time
	idle      time.Time
	heard     time.Time
	last      string
}

type watcher struct{ wake func(driver.Signal) }

// store is a process's access to the servers. It implements core.Store.
type store struct{ servers cluster }

func (c cluster) store() *store { return &store{c} }

// at returns the server that has a key, by the slots of a Cluster.
func (s *store) at(key string) *memory {
	return s.servers[redistest.Slot(key)*len(s.servers)/16384]
}

// travel is the way of a request to its server, or of the reply or a message back:
// who hears first of a release depends on there being one.
func travel() { time.Sleep(oneWay) }

// run counts a script call and its commands. Called with m.mu held, as all below.
func (m *memory) run(commands int) {
	m.count.requests++
	m.count.commands += float64(commands)
}

// lock returns who holds a key, nil if it is free.
func (m *memory) lock(key string, now time.Time) *held {
	h := m.locks[key]
	if h != nil && !now.Before(h.until) {
		delete(m.locks, key)
		return nil
	}
	return h
}

func enlist(q, id string) string {
	switch {
	case id == "" || strings.Contains(q, id):
		return q
	case q == "":
		return id
	}
	return q + "," + id
}

// Acquire implements core.Store. It ignores the context: nothing takes long here.
func (s *store) Acquire(_ context.Context, ask driver.AcquireRequest) (driver.Reply, error) {
	sent := time.Now()
	travel()
	defer travel()
	return s.at(ask.Key).acquire(ask, sent, time.Now())
}

// acquire is acquire.lua.
func (m *memory) acquire(ask driver.AcquireRequest, sent, now time.Time) (driver.Reply, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	h := m.lock(ask.Key, now)
	if h == nil {
		m.run(cmdGrant)
		m.count.granted++
		token := now.UnixMicro()
		if f := m.fences[ask.Key]; f.token >= token && now.Before(f.until) {
			token = f.token + 1
			m.count.commands++
		}
		m.fences[ask.Key] = fence{token, now.Add(ask.TTL + fenceTime)}
		m.locks[ask.Key] = &held{ask.Owner, token, ask.Rest, now.Add(ask.TTL)}
		return driver.Reply{Granted: true, Token: token, Sent: sent}, nil
	}
	if h.owner == ask.Owner {
		m.run(cmdRefuse - 2)
		return driver.Reply{Granted: true, Token: h.token, Sent: sent}, nil
	}
	m.count.refused++
	m.run(cmdRefuse)
	listed := ask.Waiter != "" && strings.Contains(h.q, ask.Waiter)
	if !listed && ask.Waiter != "" && len(h.q) < listBytes {
		h.q, listed = enlist(h.q, ask.Waiter), true
		m.count.commands += cmdEnlist - cmdRefuse
	}
	return driver.Reply{Holder: h.owner, TTL: h.until.Sub(now), Listed: listed, Sent: sent}, nil
}

// Release implements core.Store.
func (s *store) Release(_ context.Context, ask driver.ReleaseRequest) (waiting string, err error) {
	travel()
	defer travel()
	return s.at(ask.Key).release(ask, time.Now())
}

// release is release.lua.
func (m *memory) release(ask driver.ReleaseRequest, now time.Time) (waiting string, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	h := m.lock(ask.Key, now)
	m.run(cmdRelease)
	if h == nil || h.owner != ask.Owner {
		m.count.commands += cmdRevoked
		return "", driver.ErrNotOwner
	}
	delete(m.locks, ask.Key)
	m.count.releases++
	if ask.Remember {
		m.count.commands += cmdFence
		m.fences[ask.Key] = fence{ask.Token, now.Add(ask.TTL + fenceTime)}
	}
	q := h.q
	if len(q) < listBytes {
		q = enlist(q, ask.Waiter)
	}
	if q != "" {
		m.count.commands += cmdTell
		m.publish(ask.Key, q, now)
	}
	if q == ask.Waiter {
		q = ""
	}
	return q, nil
}

// publish sends a message to every process that is subscribed.
func (m *memory) publish(key, q string, now time.Time) {
	var wakes []func(driver.Signal)
	for s, c := range m.channels[key] {
		if len(c.watchers) == 0 && now.Sub(c.idle) > linger {
			delete(m.channels[key], s)
			continue
		}
		m.count.messages++
		c.heard, c.last = now, q
		for w := range c.watchers {
			wakes = append(wakes, w.wake)
		}
	}
	go func() {
		travel()
		for _, wake := range wakes {
			wake(driver.Signal{Next: q})
		}
	}()
}

// Renew is renew.lua, each lease in a call of its own as on a Cluster.
func (s *store) Renew(_ context.Context, batch []driver.Renewal, done func(int, bool, error)) {
	travel()
	defer travel()
	for i, b := range batch {
		contended, err := s.at(b.Key).renew(b, time.Now())
		done(i, contended, err)
	}
}

func (m *memory) renew(b driver.Renewal, now time.Time) (contended bool, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.run(cmdRenew)
	h := m.lock(b.Key, now)
	if h == nil || h.owner != b.Owner {
		m.count.commands += cmdRevoked
		return false, driver.ErrNotOwner
	}
	if until := now.Add(b.TTL); until.After(h.until) {
		h.until = until
	}
	return h.q != "", nil
}

// Watch is the hub of core/redisstore.
func (s *store) Watch(key string, since time.Time, wake func(driver.Signal)) (stop func()) {
	m, w, now := s.at(key), &watcher{wake}, time.Now()
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.channels[key] == nil {
		m.channels[key] = map[*store]*channel{}
	}
	c := m.channels[key][s]
	if c == nil {
		c = &channel{watchers: map[*watcher]struct{}{}, confirmed: now}
		m.channels[key][s] = c
		m.run(1) // SUBSCRIBE
	}
	c.watchers[w] = struct{}{}
	switch {
	case c.heard.After(since):
		go wake(driver.Signal{Next: c.last})
	case c.confirmed.After(since):
		go wake(driver.Signal{})
	}
	return func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		delete(c.watchers, w)
		c.idle = time.Now()
	}
}

// spread is the busiest server's requests beside the average.
func (c cluster) spread() float64 {
	var most, all float64
	for _, m := range c {
		m.mu.Lock()
		most, all = max(most, m.count.requests), all+m.count.requests
		m.mu.Unlock()
	}
	return most / (all / float64(len(c)))
}

var _ core.Store = (*store)(nil)
