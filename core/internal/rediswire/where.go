package rediswire

import (
	_ "embed"
	"maps"
	"slices"
	"time"

	"github.com/redis/go-redis/v9"
)

// This file finds out whether a subscription leads to where requests go. Nothing else
// does: no answer on its connection says so.

//go:embed lua/here.lua
var hereSource string

// It is rare: its source is sent along where a server does not know it.
var hereScript = NewScript(hereSource)

// maxUnheard is after how many questions without an answer, each on another connection,
// pings have to do.
const maxUnheard = 3

// ask has the server say something, so that the next silence means that the connection
// is of no use. It reports false if the connection is of no use already.
//
// A ping is answered for ever by a former master, too. If the address led elsewhere just
// when this connection was dialed, no request goes where the connection leads, and no
// release is announced there. So whenever the store has dialed since the last answer, the
// question goes the way of the requests, to be answered on this connection. A node of a
// Cluster is pinged: the topology says where a channel is (follow). So is a server with a
// proxy that keeps messages of scripts from subscribers.
func (sub *subscription) ask(pubsub *redis.PubSub) (useful bool) {
	s := sub.subscriber
	dials, deaf := s.store.dialer.dialed(), false
	s.mu.Lock()
	lost := sub.asked != sub.answered // what else was heard came from a server without requests
	if deaf = s.unheard == maxUnheard; deaf {
		s.own, s.unheard = "", 0
	}
	tests := !lost && sub.tests && s.own != "" && sub.answered != dials
	if tests {
		sub.asked = dials
		s.unheard++
		channel := s.own
		s.work.Go(func() { sub.sayHere(pubsub, channel) })
	}
	s.mu.Unlock()
	if deaf && !s.deaf.Swap(true) {
		s.store.log.Warn("interlock: what scripts announce does not reach the subscriptions of this process: " +
			"it finds releases late, by asking; see docs/managed.md on proxies")
	}
	return tests || !lost && pubsub.Ping(sub.ctx) == nil
}

// sayHere has the server of the requests say something on the subscriber's own channel.
func (sub *subscription) sayHere(pubsub *redis.PubSub, channel string) {
	s := sub.subscriber
	r := (&Request{}).Make(s.store, hereScript, channel, make([]any, callArgs+1)).Keys(channel)
	r.Asks, r.once, r.Deadline = true, true, time.Now().Add(s.silence)
	r.Start() // not Do: the connection would be broken off when the context ends
	answered := r.Wait(sub.ctx, r.Deadline)
	if answered && r.Err == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.unheard = max(s.unheard-1, 0) // nothing may have been said
	if answered && IsReply(r.Err) && fateOf(r.Err) == refused {
		// The user has no right to that, and pings have to do. If the subscription has another
		// connection by now, that is true of it too.
		s.own, sub.answered = "", sub.asked
		s.work.Go(func() { _ = pubsub.Ping(sub.ctx) }) // in place of the question; an error shows in the reader
	}
}

// follow lets channels look for another subscription that another node of the Cluster has by
// now. A former master that is cut off from the others does not say so.
func (sub *subscription) follow() {
	s := sub.subscriber
	if !s.store.clustered() {
		return
	}
	s.mu.Lock()
	channels := slices.Collect(maps.Keys(sub.topics))
	s.mu.Unlock()
	channels = slices.DeleteFunc(channels, func(channel string) bool {
		node, err := s.store.requests.cluster.MasterForKey(s.store.dialer.ctx, channel)
		return err != nil || node == sub.client
	})
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, channel := range channels {
		if t := sub.topics[channel]; t != nil {
			sub.drop = append(sub.drop, channel)
			sub.leave(t)
		}
	}
}
