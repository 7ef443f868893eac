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

// held is a lock that has an owner, or is free and kept for those who wait.
type held struct {
	owner string // empty: it is kept
	token int64
	q     string
	until time.Time
	since time.Time // of a lock that is kept
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

// enlist enters a locker at the end of a list that has room, or changes its patience.
func enlist(q, name string) string {
	id, _ := driver.CutPatience(name)
	switch at := strings.Index(q, id); {
	case name == "":
		return q
	case q == "":
		return name
	case at >= 0:
		_, behind, more := strings.Cut(q[at:], ",")
		if q = q[:at] + name; more {
			q += "," + behind
		}
		return q
	case strings.Count(q, ",") >= listRoom-1:
		return q
	}
	return q + "," + name
}

// turns is for how many lockers a lock is kept.
const turns = 4

// keep returns for how long a lock is kept for the first lockers of a list.
func keep(q string) (lasts time.Duration) {
	for i, name := range strings.Split(q, ",") {
		if i == turns || !strings.Contains(name, "~") {
			break
		}
		_, patience := driver.CutPatience(name)
		lasts += patience
	}
	return lasts
}

// opens returns when the turn of a locker begins for which a lock is kept, and the list
// behind it.
func (h *held) opens(waiter string) (at time.Time, rest string) {
	id, _ := driver.CutPatience(waiter)
	at, rest = h.since, h.q
	for rest != "" {
		var entry string
		entry, rest, _ = strings.Cut(rest, ",")
		name, patience := driver.CutPatience(entry)
		if name == id {
			return at, rest
		}
		at = at.Add(patience)
	}
	return h.until, ""
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
		return m.grant(ask, sent, now), nil
	}
	if h.owner == ask.Owner {
		m.run(cmdRefuse - 2)
		return driver.Reply{Granted: true, Token: h.token, Sent: sent}, nil
	}
	commands, ends := cmdRefuse, h.until
	if h.owner == "" {
		at, rest := h.opens(ask.Waiter)
		if !now.Before(at) {
			delete(m.locks, ask.Key)
			ask.Rest = rest
			m.count.commands += cmdTurn - cmdGrant
			return m.grant(ask, sent, now), nil
		}
		commands, ends = cmdRefuse-1, at
	}
	m.count.refused++
	m.run(commands)
	if q := enlist(h.q, ask.Waiter); q != h.q {
		h.q = q
		m.count.commands += cmdEnlist - cmdRefuse
	}
	id, _ := driver.CutPatience(ask.Waiter)
	listed := id != "" && strings.Contains(h.q, id)
	return driver.Reply{Holder: h.owner, TTL: ends.Sub(now), Listed: listed, Sent: sent}, nil
}

// grant gives a lock that is free to an owner.
func (m *memory) grant(ask driver.AcquireRequest, sent, now time.Time) driver.Reply {
	m.run(cmdGrant)
	m.count.granted++
	token := now.UnixMicro()
	if f := m.fences[ask.Key]; f.token >= token && now.Before(f.until) {
		token = f.token + 1
		m.count.commands++
	}
	m.fences[ask.Key] = fence{token, now.Add(ask.TTL + fenceTime)}
	m.locks[ask.Key] = &held{owner: ask.Owner, token: token, q: ask.Rest, until: now.Add(ask.TTL)}
	return driver.Reply{Granted: true, Token: token, Sent: sent}
}

// RoundTrip implements driver.Ranger.
func (s *store) RoundTrip() time.Duration { return 2 * oneWay }

// Decline is decline.lua.
func (s *store) Decline(key, waiter string) { s.at(key).decline(key, waiter, time.Now()) }

func (m *memory) decline(key, waiter string, now time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.run(2) // EVALSHA HMGET
	h := m.lock(key, now)
	if h == nil || !strings.Contains(h.q, waiter) {
		return
	}
	if h.owner == "" {
		if at, rest := h.opens(waiter); !now.Before(at) {
			m.count.commands += 2 // PTTL DEL
			delete(m.locks, key)
			m.free(key, rest, now)
			return
		}
	}
	m.count.commands++ // HSET or HDEL
	var left []string
	for name := range strings.SplitSeq(h.q, ",") {
		if !strings.Contains(name, waiter) {
			left = append(left, name)
		}
	}
	h.q = strings.Join(left, ",")
}

// free keeps a lock that became free for the lockers of a list, and tells them.
func (m *memory) free(key, q string, now time.Time) {
	if q == "" {
		return
	}
	if lasts := keep(q); lasts > 0 {
		m.count.commands += cmdKeep
		m.locks[key] = &held{q: q, since: now, until: now.Add(lasts)}
	}
	m.count.commands += cmdTell
	m.publish(key, q, now)
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
	q := enlist(h.q, ask.Waiter)
	m.free(ask.Key, q, now)
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
