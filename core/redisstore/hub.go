package redisstore

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/interlock-go/interlock/core/driver"
)

const (
	// pingAfter is how long a subscription connection is silent before it is
	// asked whether it is still there; as long again without an answer and it
	// is replaced.
	pingAfter = 3 * time.Second
	// linger is how long a channel stays subscribed after its last watcher: a
	// key that was contended is soon contended again.
	linger = 5 * time.Second
	// minRetry and maxRetry bound the pauses between connections that fail.
	minRetry = 50 * time.Millisecond
	maxRetry = time.Second
)

// hub hears of releases for all waiting heads of the process, over one
// connection; on a Cluster one for each master that has a watched key (sharded
// pub/sub: a channel lives on its slot's node). Connections are opened at the
// first contention and closed when nothing has been watched for a while.
//
// A message can be lost: before a subscription is confirmed, over a reconnect,
// or when a slot moves. Whenever the hub cannot be sure, it wakes the watchers of
// the channel to look for themselves.
type hub struct {
	store *Store
	deaf  atomic.Bool // releases are not announced to this process, which was said

	mu     sync.Mutex
	topics map[string]*topic // by channel
	lines  map[*redis.Client]*line
	told   []telling // to be carried out by unlock
	closed bool
	work   sync.WaitGroup
}

// telling is a signal for a watcher.
type telling struct {
	*watcher
	signal driver.Signal
}

// unlock releases the mutex and then sends the signals that were collected under it.
// The watchers take locks of their own, under which they may call the hub.
func (h *hub) unlock() {
	told := h.told
	h.told = nil
	h.mu.Unlock()
	for _, t := range told {
		t.wake(t.signal)
	}
}

// topic is a channel that is watched, or was a short while ago.
type topic struct {
	channel  string
	watchers map[*watcher]struct{}
	idle     time.Time // when the last watcher left
	line     *line     // that carries it; nil while there is none

	confirmed time.Time // when the subscription was confirmed; zero: not now
	heard     time.Time // when the last message came
	last      string    // what it said
}

type watcher struct{ wake func(driver.Signal) }

// line is a subscription connection to one server.
type line struct {
	hub    *hub
	client *redis.Client
	ctx    context.Context
	cancel context.CancelFunc

	// Guarded by the hub's mutex.
	topics  map[string]*topic
	add     []string // to subscribe
	drop    []string // to unsubscribe
	pubsub  *redis.PubSub
	writing bool // a goroutine is telling the server
}

func newHub(s *Store) *hub {
	return &hub{store: s, topics: map[string]*topic{}, lines: map[*redis.Client]*line{}}
}

// watch implements Store.Watch for a channel.
func (h *hub) watch(channel string, since time.Time, wake func(driver.Signal)) (stop func()) {
	w := &watcher{wake}
	h.mu.Lock()
	defer h.unlock()
	if h.closed {
		return func() {}
	}
	t := h.topics[channel]
	if t == nil {
		t = &topic{channel: channel, watchers: map[*watcher]struct{}{}}
		h.topics[channel] = t
	}
	t.watchers[w] = struct{}{}
	switch {
	case t.line == nil:
		h.route(t)
	case t.confirmed.IsZero():
		// It will be confirmed, and then all watchers look.
	case t.heard.After(since):
		h.tell(t, t.last, w) // it was said while the caller was on its way
	case t.confirmed.After(since):
		h.tell(t, "", w)
	}
	return func() {
		h.mu.Lock()
		defer h.unlock()
		delete(t.watchers, w)
		t.idle = time.Now()
	}
}

// tell has watchers woken, all of a topic or only one. Called with h.mu held.
func (h *hub) tell(t *topic, next string, only *watcher) {
	signal := driver.Signal{Next: next}
	if only != nil {
		h.told = append(h.told, telling{only, signal})
		return
	}
	for w := range t.watchers {
		h.told = append(h.told, telling{w, signal})
	}
}

// route finds the connection for a topic. Called with h.mu held.
func (h *hub) route(t *topic) {
	if h.store.requests.single != nil {
		h.attach(t, h.store.requests.single)
		return
	}
	// Finding the master can take a request of its own.
	h.work.Go(func() {
		node, err := h.store.requests.cluster.MasterForKey(context.Background(), t.channel)
		h.mu.Lock()
		defer h.unlock()
		switch {
		case h.closed || h.topics[t.channel] != t || t.line != nil:
		case err != nil:
			h.store.reload()
			time.AfterFunc(minRetry, func() { h.reroute(t) })
		default:
			h.attach(t, node)
		}
	})
}

// reroute tries again to find a topic's connection; its watchers look meanwhile.
func (h *hub) reroute(t *topic) {
	h.mu.Lock()
	defer h.unlock()
	if h.closed || h.topics[t.channel] != t || t.line != nil {
		return
	}
	if len(t.watchers) == 0 {
		delete(h.topics, t.channel)
		return
	}
	h.tell(t, "", nil)
	h.route(t)
}

// attach subscribes a topic on the line to a server. Called with h.mu held.
func (h *hub) attach(t *topic, client *redis.Client) {
	ln := h.lines[client]
	if ln == nil {
		ctx, cancel := context.WithCancel(context.Background())
		ln = &line{hub: h, client: client, ctx: ctx, cancel: cancel, topics: map[string]*topic{}}
		h.lines[client] = ln
		h.work.Go(ln.run)
	}
	t.line, t.confirmed = ln, time.Time{}
	ln.topics[t.channel] = t
	ln.drop = without(ln.drop, t.channel)
	ln.add = append(ln.add, t.channel)
	ln.write()
}

func without(list []string, s string) []string {
	return slices.DeleteFunc(list, func(x string) bool { return x == s })
}

// write has the server told about new and dropped channels. Called with the
// hub's mutex held.
func (ln *line) write() {
	if ln.writing || ln.pubsub == nil || len(ln.add)+len(ln.drop) == 0 {
		return
	}
	ln.writing = true
	ln.hub.work.Go(func() {
		h := ln.hub
		h.mu.Lock()
		defer h.unlock()
		for ln.pubsub != nil && len(ln.add)+len(ln.drop) > 0 {
			add, drop, pubsub := ln.add, ln.drop, ln.pubsub
			ln.add, ln.drop = nil, nil
			h.unlock()
			// Errors show in the reader too, which starts over.
			// What is dropped goes first: a channel never is in both lists, and
			// one that was dropped before may have been added since.
			_ = h.unsubscribe(ln.ctx, pubsub, drop)
			_ = h.subscribe(ln.ctx, pubsub, add)
			h.mu.Lock()
		}
		ln.writing = false
	})
}

func (h *hub) subscribe(ctx context.Context, p *redis.PubSub, channels []string) error {
	return h.each(ctx, channels, p.Subscribe, p.SSubscribe)
}

func (h *hub) unsubscribe(ctx context.Context, p *redis.PubSub, channels []string) error {
	return h.each(ctx, channels, p.Unsubscribe, p.SUnsubscribe)
}

// each tells the server about channels: all in one command, a node of a Cluster each
// in its own, since one command must not name several slots.
func (h *hub) each(ctx context.Context, channels []string, plain, sharded func(context.Context, ...string) error) error {
	if len(channels) == 0 {
		return nil
	}
	if !h.store.announce.sharded.Load() {
		return plain(ctx, channels...)
	}
	var errs error
	for _, c := range channels {
		errs = errors.Join(errs, sharded(ctx, c))
	}
	return errs
}

// run keeps a line up until nothing has been watched on it for a while.
func (ln *line) run() {
	h := ln.hub
	defer ln.cancel()
	for pause := minRetry; ; pause = min(2*pause, maxRetry) {
		good := ln.connect()
		h.mu.Lock()
		ln.pubsub = nil
		ln.forget() // a connection that never comes up has no silence to do it in
		if h.closed || len(ln.topics) == 0 {
			ln.retire()
			h.unlock()
			return
		}
		if h.store.clustered() {
			// The slot may have moved, or its master died: look for it anew.
			ln.scatter()
			ln.retire()
			h.unlock()
			return
		}
		// Until it is up again, all watchers look from time to time.
		for _, t := range ln.topics {
			t.confirmed = time.Time{}
			h.tell(t, "", nil)
		}
		h.unlock()
		if good {
			pause = minRetry
		}
		select {
		case <-ln.ctx.Done():
		case <-time.After(pause):
		}
	}
}

// retire takes the line out of the hub. Called with h.mu held.
func (ln *line) retire() {
	if ln.hub.lines[ln.client] == ln {
		delete(ln.hub.lines, ln.client)
	}
}

// scatter lets every topic of a line look for another. Called with h.mu held.
func (ln *line) scatter() {
	ln.hub.store.reload()
	for _, t := range ln.topics {
		ln.leave(t)
	}
}

// leave lets a topic look for another line in a while: at once it would find the
// one that it comes from, since the topology is being asked for only now. Called
// with h.mu held.
func (ln *line) leave(t *topic) {
	delete(ln.topics, t.channel)
	ln.add = without(ln.add, t.channel)
	t.line, t.confirmed = nil, time.Time{}
	time.AfterFunc(minRetry, func() { ln.hub.reroute(t) })
}

// misplaced takes the answer that the server does not have a channel's slot. It
// does not say which channel's, but it is one that was not confirmed. If there
// is none, it reports false: what is subscribed is then unknown.
func (ln *line) misplaced() (known bool) {
	h := ln.hub
	h.mu.Lock()
	defer h.unlock()
	h.store.reload()
	for _, t := range ln.topics {
		if t.confirmed.IsZero() {
			ln.leave(t)
			known = true
		}
	}
	return known
}

// connect subscribes to all topics of the line over a new connection and reads
// from it until it fails. It reports whether the server answered at all.
func (ln *line) connect() (good bool) {
	h := ln.hub
	if !h.store.announce.known.Load() {
		_ = ln.client.Ping(ln.ctx) // with the connection the kind of the server becomes known
	}
	pubsub := ln.client.Subscribe(ln.ctx)
	defer pubsub.Close() //nolint:errcheck // the connection is given up
	h.mu.Lock()
	if h.closed {
		h.unlock()
		return false
	}
	ln.pubsub = pubsub
	ln.add, ln.drop = ln.add[:0], nil
	for name := range ln.topics {
		ln.add = append(ln.add, name)
	}
	ln.write()
	h.unlock()

	silent, tidied := false, time.Now()
	for {
		msg, err := receive(ln.ctx, pubsub)
		switch {
		case err == nil:
			good, silent = true, false
			if !ln.heard(msg) {
				return good
			}
			if time.Since(tidied) > pingAfter { // busy: not only when it is silent
				tidied = time.Now()
				if ln.tidy() {
					return good
				}
			}
		case ln.ctx.Err() == nil && isReply(err) && fateOf(err) == elsewhere:
			good, silent = true, false
			if !ln.misplaced() {
				return good
			}
		case ln.ctx.Err() != nil, silent, !isTimeout(err):
			h.refused(err)
			return good
		default:
			// Nothing for a while: ask. The next silence is the end.
			silent = true
			if ln.tidy() || pubsub.Ping(ln.ctx) != nil {
				return good
			}
		}
	}
}

// refused logs, once, that the server does not let this client subscribe, if that
// is what err says.
func (h *hub) refused(err error) {
	if right := missing(err.Error()); isReply(err) && right != "" && !h.deaf.Swap(true) {
		h.store.log.Warn("interlock: Redis refused to announce releases: this process finds them late, by asking; "+
			"the user of the connection needs the rights that docs/operations.md lists", "missing", right)
	}
}

// receive reads what the server says next. go-redis takes the form of a message
// for granted: another one makes it panic, and is an error here.
func receive(ctx context.Context, p *redis.PubSub) (msg any, err error) {
	defer func() {
		if why := recover(); why != nil {
			err = fmt.Errorf("%w: %v", errReply, why)
		}
	}()
	return p.ReceiveTimeout(ctx, pingAfter)
}

// heard takes what the server sent. It reports false when the connection is of
// no more use.
func (ln *line) heard(msg any) bool {
	h := ln.hub
	h.mu.Lock()
	defer h.unlock()
	now := time.Now()
	switch m := msg.(type) {
	case *redis.Message:
		if t := ln.topics[m.Channel]; t != nil {
			t.heard, t.last = now, m.Payload
			h.tell(t, m.Payload, nil)
		}
	case *redis.Subscription:
		t := ln.topics[m.Channel]
		switch {
		case t == nil:
		case m.Kind == "subscribe", m.Kind == "ssubscribe":
			// Also after a reconnect inside go-redis: what was said before it
			// is lost.
			t.confirmed = now
			h.tell(t, "", nil)
		case m.Kind == "unsubscribe":
			// Not asked for any more: it was watched again meanwhile.
			t.confirmed = time.Time{}
			ln.add = append(without(ln.add, m.Channel), m.Channel)
			ln.write()
		case m.Kind == "sunsubscribe":
			// Not asked for (those are out of ln.topics): the slot has moved.
			ln.leave(t)
			h.store.reload()
			h.tell(t, "", nil)
		}
	}
	return !h.closed
}

// tidy gives up channels without a watcher for a while. It reports whether none is left.
func (ln *line) tidy() bool {
	h := ln.hub
	h.mu.Lock()
	defer h.unlock()
	ln.drop = append(ln.drop, ln.forget()...)
	if len(ln.topics) == 0 {
		ln.pubsub = nil // a watch that comes now finds no line and makes one
		ln.retire()
		return true
	}
	ln.write()
	return false
}

// forget takes out the channels that had no watcher for a while, and returns them.
// Called with h.mu held.
func (ln *line) forget() (channels []string) {
	for name, t := range ln.topics {
		if len(t.watchers) == 0 && time.Since(t.idle) > linger {
			delete(ln.topics, name)
			delete(ln.hub.topics, name)
			ln.add = without(ln.add, name)
			channels = append(channels, name)
		}
	}
	return channels
}

// close ends all lines and waits for their goroutines.
func (h *hub) close() {
	h.mu.Lock()
	h.closed = true
	var open []*redis.PubSub
	for _, ln := range h.lines {
		ln.cancel()
		if ln.pubsub != nil {
			open = append(open, ln.pubsub)
		}
	}
	h.unlock()
	for _, p := range open {
		_ = p.Close() // ends a read that is waiting
	}
	h.work.Wait()
}

func isTimeout(err error) bool {
	var timeout net.Error
	return errors.As(err, &timeout) && timeout.Timeout()
}
