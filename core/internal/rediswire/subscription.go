package rediswire

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"time"

	"github.com/redis/go-redis/v9"
)

// subscription is the connection to one server.
type subscription struct {
	subscriber *subscriber
	client     *redis.Client
	ctx        context.Context
	cancel     context.CancelFunc

	// Guarded by the subscriber's mutex.
	topics  map[string]*topic
	add     []string // to subscribe
	drop    []string // to unsubscribe
	pubsub  *redis.PubSub
	writing bool // a goroutine is telling the server
	tests   bool // the connection listens to subscriber.own
	// The number of dials when the own channel was last used, and when the connection last
	// received a message of it. See ask.
	asked, answered int
}

func without[T comparable](list []T, one T) []T {
	return slices.DeleteFunc(list, func(x T) bool { return x == one })
}

// write has the server told about new and dropped channels. Called with the
// subscriber's mutex held.
func (sub *subscription) write() {
	if sub.writing || sub.pubsub == nil || len(sub.add)+len(sub.drop) == 0 {
		return
	}
	sub.writing = true
	sub.subscriber.work.Go(func() {
		for {
			add, drop, pubsub := sub.changes()
			if pubsub == nil {
				return
			}
			// Errors show in the reader too, which starts over.
			// Dropped channels go first: a channel never is in both lists, and a channel that was
			// dropped before may have been added since.
			_ = sub.subscriber.unsubscribe(sub.ctx, pubsub, drop)
			_ = sub.subscriber.subscribe(sub.ctx, pubsub, add)
		}
	})
}

// changes takes the changes to send to the server over a connection. If there is
// nothing, the connection is nil and the writing ends.
func (sub *subscription) changes() (add, drop []string, pubsub *redis.PubSub) {
	sub.subscriber.mu.Lock()
	defer sub.subscriber.mu.Unlock()
	if sub.pubsub == nil || len(sub.add)+len(sub.drop) == 0 {
		sub.writing = false
		return nil, nil, nil
	}
	add, drop = sub.add, sub.drop
	sub.add, sub.drop = nil, nil
	return add, drop, sub.pubsub
}

func (s *subscriber) subscribe(ctx context.Context, p *redis.PubSub, channels []string) error {
	return s.each(ctx, channels, p.Subscribe, p.SSubscribe)
}

func (s *subscriber) unsubscribe(ctx context.Context, p *redis.PubSub, channels []string) error {
	return s.each(ctx, channels, p.Unsubscribe, p.SUnsubscribe)
}

// each tells the server about channels: all in one command, a node of a Cluster each
// in its own, since one command must not name several slots. The channels of lockers are not
// sharded there either: their messages come from scripts in any slot.
func (s *subscriber) each(ctx context.Context, channels []string, plain, sharded func(context.Context, ...string) error) error {
	if len(channels) == 0 {
		return nil
	}
	if !s.store.announce.sharded.Load() {
		return plain(ctx, channels...)
	}
	var errs error
	for _, c := range channels {
		if s.store.names.ofLocker(c) {
			errs = errors.Join(errs, plain(ctx, c))
		} else {
			errs = errors.Join(errs, sharded(ctx, c))
		}
	}
	return errs
}

// run keeps a subscription up until nothing has been watched on it for a while.
func (sub *subscription) run() {
	defer sub.cancel()
	for pause := minRetry; ; pause = min(2*pause, maxRetry) {
		good, ends := sub.connect(), false
		sub.subscriber.do(func() { ends = sub.broken() })
		if ends {
			return
		}
		if good {
			pause = minRetry
		}
		select {
		case <-sub.ctx.Done():
		case <-time.After(pause):
		}
	}
}

// broken is called when a connection has ended. It reports whether the subscription
// ends with it. Called with the subscriber's mutex held.
func (sub *subscription) broken() (ends bool) {
	s := sub.subscriber
	sub.pubsub = nil
	sub.forget() // a connection that never comes up has no silence to do it in
	if s.closed || len(sub.topics) == 0 {
		sub.retire()
		return true
	}
	if s.store.clustered() {
		// The slot may have moved, or its master died: look for it anew.
		sub.scatter()
		sub.retire()
		return true
	}
	// Until it is up again, all watchers look from time to time.
	for _, t := range sub.topics {
		t.confirmed = time.Time{}
		s.tell(t, "", nil)
	}
	return false
}

// retire takes the subscription out of the subscriber. Called with s.mu held.
func (sub *subscription) retire() {
	if sub.subscriber.subs[sub.client] == sub {
		delete(sub.subscriber.subs, sub.client)
	}
}

// scatter lets every topic of a subscription look for another. Called with s.mu held.
func (sub *subscription) scatter() {
	sub.subscriber.store.reload()
	for _, t := range sub.topics {
		sub.leave(t)
	}
}

// leave lets a topic look for another subscription in a while: at once it would find the
// same one again, since the topology is being asked for only now. Called
// with s.mu held.
func (sub *subscription) leave(t *topic) {
	delete(sub.topics, t.channel)
	sub.add = without(sub.add, t.channel)
	t.sub, t.confirmed = nil, time.Time{}
	time.AfterFunc(minRetry, func() { sub.subscriber.reroute(t) })
}

// misplaced takes the answer that the server does not have a channel's slot. It
// does not say which channel's, but the channel is not confirmed. If there is none, it
// reports false: the subscribed channels are then unknown.
func (sub *subscription) misplaced() (known bool) {
	s := sub.subscriber
	s.mu.Lock()
	defer s.mu.Unlock()
	s.store.reload()
	for _, t := range sub.topics {
		if t.confirmed.IsZero() {
			sub.leave(t)
			known = true
		}
	}
	return known
}

// connect subscribes to all topics of the subscription over a new connection and reads
// from it until it fails. It reports whether the server answered at all.
func (sub *subscription) connect() (good bool) {
	s := sub.subscriber
	if !s.store.announce.known.Load() {
		_ = sub.client.Ping(s.store.dialer.ctx) // with the connection, of a request, the kind of the server becomes known
	}
	pubsub := sub.client.Subscribe(sub.ctx)
	defer pubsub.Close() //nolint:errcheck // the connection is given up
	if !sub.use(pubsub) {
		return false
	}
	silent, tidied := false, time.Now()
	for {
		msg, err := receive(sub.ctx, pubsub, s.silence)
		switch {
		case err == nil:
			good, silent = true, false
			if !sub.heard(msg) {
				return good
			}
			if time.Since(tidied) > s.silence { // busy: not only when it is silent
				tidied = time.Now()
				if sub.tidy() {
					return good
				}
			}
		case sub.ctx.Err() == nil && IsReply(err) && fateOf(err) == elsewhere:
			good, silent = true, false
			if !sub.misplaced() {
				return good
			}
		case sub.ctx.Err() != nil, silent, !isTimeout(err):
			s.refused(err)
			return good
		default:
			// Nothing for a while: ask. The next silence is the end.
			silent = true
			if sub.tidy() || !sub.ask(pubsub) {
				return good
			}
		}
	}
}

// use has a new connection told about all channels. It reports false once the
// subscriber is closed.
func (sub *subscription) use(pubsub *redis.PubSub) bool {
	s := sub.subscriber
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return false
	}
	sub.pubsub = pubsub
	sub.add, sub.drop = sub.add[:0], nil
	sub.asked, sub.answered = 0, 0
	if sub.tests = s.own != "" && !s.store.announce.sharded.Load(); sub.tests {
		sub.add = append(sub.add, s.own)
	}
	for name := range sub.topics {
		sub.add = append(sub.add, name)
	}
	sub.write()
	return true
}

// receive reads the next message of the server. go-redis takes the form of a message
// for granted: another one makes it panic, and is an error here.
func receive(ctx context.Context, p *redis.PubSub, within time.Duration) (msg any, err error) {
	defer func() {
		if why := recover(); why != nil {
			err = fmt.Errorf("%w: %w", ErrReply, fmt.Errorf("go-redis panicked: %v", why))
		}
	}()
	return p.ReceiveTimeout(ctx, within)
}

// heard takes a message of the server. It reports false when the connection is of no
// more use.
func (sub *subscription) heard(msg any) (useful bool) {
	s := sub.subscriber
	s.do(func() {
		switch m := msg.(type) {
		case *redis.Message:
			if t := sub.topics[m.Channel]; t != nil {
				t.heard, t.last = time.Now(), m.Payload
				s.tell(t, m.Payload, nil)
			} else if m.Channel == s.own {
				sub.answered, s.unheard = sub.asked, 0
			}
		case *redis.Subscription:
			if t := sub.topics[m.Channel]; t != nil {
				sub.changed(t, m.Kind)
			}
		}
		useful = !s.closed
	})
	return useful
}

// changed takes the server's confirmation about a subscription to a channel. Called
// with the subscriber's mutex held.
func (sub *subscription) changed(t *topic, kind string) {
	s := sub.subscriber
	switch kind {
	case "subscribe", "ssubscribe":
		// Also after a reconnect inside go-redis: earlier messages are lost.
		t.confirmed = time.Now()
		s.tell(t, "", nil)
	case "unsubscribe":
		// Not asked for any more: it was watched again meanwhile.
		t.confirmed = time.Time{}
		sub.add = append(without(sub.add, t.channel), t.channel)
		sub.write()
	case "sunsubscribe":
		// Not asked for (those are out of sub.topics): the slot has moved.
		sub.leave(t)
		s.store.reload()
		s.tell(t, "", nil)
	}
}

// tidy gives up channels without a watcher for a while. It reports whether none is left.
func (sub *subscription) tidy() bool {
	sub.follow()
	s := sub.subscriber
	s.mu.Lock()
	defer s.mu.Unlock()
	sub.drop = append(sub.drop, sub.forget()...)
	if len(sub.topics) == 0 {
		sub.pubsub = nil // a watch that comes now finds no subscription and makes one
		sub.retire()
		return true
	}
	sub.write()
	return false
}

// forget takes out the channels that had no watcher for a while, and returns them.
// Called with s.mu held.
func (sub *subscription) forget() (channels []string) {
	for name, t := range sub.topics {
		if len(t.watchers) == 0 && time.Since(t.idle) > linger {
			delete(sub.topics, name)
			delete(sub.subscriber.topics, name)
			sub.add = without(sub.add, name)
			channels = append(channels, name)
		}
	}
	return channels
}

func isTimeout(err error) bool {
	var timeout net.Error
	return errors.As(err, &timeout) && timeout.Timeout()
}
