package rediswire

import (
	"context"
	"crypto/rand"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
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

// subscriber gets the releases for all waiting heads of the process, and what happens to
// locks of attentive holders (notify.go), over one connection; on a Cluster over one for each
// master that has a watched key (sharded pub/sub: a channel lives on its slot's node; the
// channel of a locker is a plain one there, too). Connections are opened at the
// first contention and closed when nothing has been watched for a while.
//
// A message can be lost: before a subscription is confirmed, over a reconnect,
// or when a slot moves. Whenever the subscriber cannot be sure, it wakes the watchers of
// the channel to look for themselves.
type subscriber struct {
	store   *Store
	silence time.Duration // pingAfter
	deaf    atomic.Bool   // releases are not announced to this process, which was said

	mu      sync.Mutex
	own     string            // the channel of a lock that nothing else knows, or empty; see subscription.ask
	unheard int               // questions there without an answer, one after the other
	topics  map[string]*topic // by channel
	subs    map[*redis.Client]*subscription
	told    []telling // to be carried out by do
	closed  bool
	work    sync.WaitGroup
}

// telling is a message for a watcher.
type telling struct {
	*watcher
	message string
}

// do calls f with the mutex held, and passes on the messages that f has collected when the
// mutex is free again. The watchers take their own locks, and may call the subscriber
// under them.
func (s *subscriber) do(f func()) {
	s.mu.Lock()
	f()
	told := s.told
	s.told = nil
	s.mu.Unlock()
	for _, t := range told {
		t.hear(t.message)
	}
}

// topic is a channel that is watched, or was a short while ago.
type topic struct {
	channel  string
	watchers map[*watcher]struct{}
	idle     time.Time     // when the last watcher left
	sub      *subscription // that carries it; nil while there is none

	confirmed time.Time // when the subscription was confirmed; zero: not now
	heard     time.Time // when the last message came
	last      string    // its text
}

// watcher receives the messages of a channel. An empty message says that nothing is
// known.
type watcher struct{ hear func(message string) }

func newSubscriber(s *Store) *subscriber {
	return &subscriber{
		store: s, own: s.names.channel(s.names.lock(rand.Text())), silence: pingAfter,
		topics: map[string]*topic{}, subs: map[*redis.Client]*subscription{},
	}
}

// watch calls hear for messages on a channel from now on, and for messages that it may have
// missed since.
func (s *subscriber) watch(channel string, since time.Time, hear func(message string)) (stop func()) {
	w := &watcher{hear}
	var t *topic
	s.do(func() { t = s.join(channel, since, w) })
	if t == nil {
		return func() {}
	}
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(t.watchers, w)
		t.idle = time.Now()
	}
}

// join adds a watcher to a channel; it returns nil once the subscriber is closed. Called
// with s.mu held.
func (s *subscriber) join(channel string, since time.Time, w *watcher) *topic {
	if s.closed {
		return nil
	}
	t := s.topics[channel]
	if t == nil {
		t = &topic{channel: channel, watchers: map[*watcher]struct{}{}}
		s.topics[channel] = t
	}
	t.watchers[w] = struct{}{}
	switch {
	case t.sub == nil:
		s.route(t)
	case t.confirmed.IsZero():
		// It will be confirmed, and then all watchers look.
	case t.heard.After(since) && !partial(t.last) && !s.store.names.ofLocker(channel):
		s.tell(t, t.last, w) // it was said while the caller was on its way
	case t.heard.After(since):
		s.tell(t, "", w) // messages before it may count as well
	case t.confirmed.After(since):
		s.tell(t, "", w)
	}
	return t
}

// hears reports whether the subscription to a channel is confirmed.
func (s *subscriber) hears(channel string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	t := s.topics[channel]
	return t != nil && !t.confirmed.IsZero()
}

// tell has watchers woken by a message, all of a topic or only one; an empty message says
// that nothing is known. Called with s.mu held.
func (s *subscriber) tell(t *topic, message string, only *watcher) {
	if only != nil {
		s.told = append(s.told, telling{only, message})
		return
	}
	for w := range t.watchers {
		s.told = append(s.told, telling{w, message})
	}
}

// route finds the connection for a topic. Called with s.mu held.
func (s *subscriber) route(t *topic) {
	if s.store.requests.single != nil {
		s.attach(t, s.store.requests.single)
		return
	}
	// Finding the master can take a further request.
	s.work.Go(func() {
		node, err := s.store.requests.cluster.MasterForKey(context.Background(), t.channel)
		s.mu.Lock()
		defer s.mu.Unlock()
		switch {
		case s.closed || s.topics[t.channel] != t || t.sub != nil:
		case err != nil:
			s.store.reload()
			time.AfterFunc(minRetry, func() { s.reroute(t) })
		default:
			s.attach(t, node)
		}
	})
}

// reroute tries again to find a topic's connection; its watchers look meanwhile.
func (s *subscriber) reroute(t *topic) {
	s.do(func() {
		switch {
		case s.closed || s.topics[t.channel] != t || t.sub != nil:
		case len(t.watchers) == 0:
			delete(s.topics, t.channel)
		default:
			s.tell(t, "", nil)
			s.route(t)
		}
	})
}

// attach subscribes a topic on the subscription to a server. Called with s.mu held.
func (s *subscriber) attach(t *topic, client *redis.Client) {
	sub := s.subs[client]
	if sub == nil {
		ctx, cancel := context.WithCancel(context.WithValue(context.Background(), ofSubscription{}, true))
		sub = &subscription{subscriber: s, client: client, ctx: ctx, cancel: cancel, topics: map[string]*topic{}}
		s.subs[client] = sub
		s.work.Go(sub.run)
	}
	t.sub, t.confirmed = sub, time.Time{}
	sub.topics[t.channel] = t
	sub.drop = without(sub.drop, t.channel)
	sub.add = append(sub.add, t.channel)
	sub.write()
}

// refused logs, once, that the server does not let this client subscribe, if that
// is what err says.
func (s *subscriber) refused(err error) {
	if right := missing(err.Error()); IsReply(err) && right != "" && !s.deaf.Swap(true) {
		s.store.log.Warn("interlock: Redis refused to announce releases: this process finds them late, by asking; "+
			"the user of the connection needs the rights that docs/operations.md lists", "missing", right)
	}
}

// close ends all subscriptions and waits for their goroutines.
func (s *subscriber) close() {
	for _, p := range s.shut() {
		_ = p.Close() // ends a read that is waiting
	}
	s.work.Wait()
}

// shut ends all subscriptions, and returns their connections.
func (s *subscriber) shut() (open []*redis.PubSub) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	for _, sub := range s.subs {
		sub.cancel()
		if sub.pubsub != nil {
			open = append(open, sub.pubsub)
		}
	}
	return open
}
