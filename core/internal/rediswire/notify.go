package rediswire

import (
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/interlock-go/interlock/core/driver"
)

// Notify implements [driver.Turns]: the locker has a separate channel. A message there is
// the number of an owner of the locker, a space and the name of a lock (lua/want.lua).
// Anything else is ignored, also messages of later versions.
func (s *Store) Notify(id string, hear func(key, owner string)) (stop func()) {
	return s.subscriber.watch(s.names.wanted(id), time.Now(), func(message string) {
		if message == "" {
			hear("", "")
		} else if key, owner, ok := s.newsOf(id, message); ok {
			hear(key, owner)
		}
	})
}

// newsOf reads a message on the channel of a locker.
func (s *Store) newsOf(id, message string) (key, owner string, ok bool) {
	number, name, _ := strings.Cut(message, " ")
	if _, err := strconv.ParseUint(number, 10, 64); err != nil {
		return "", "", false
	}
	key, ok = s.KeyOf(name)
	return key, driver.Attentive(id + ":" + number), ok
}

// Offers implements [driver.Turns]. A message on the channel of the locker is "=", the token,
// "+" if others wait, a space and the name of a lock (lua/freed.lua). Where a grant has to be
// acknowledged by replicas, and where several servers have the locks, the store reaches no locker.
func (s *Store) Offers(id string, ready func(bool), take func(driver.Offer)) (stop func()) {
	channel := s.names.wanted(id)
	var mu sync.Mutex // so that the last that is said is the state
	say := func() {
		mu.Lock()
		defer mu.Unlock()
		one := !s.announce.sharded.Load() && s.keyspace != nil && s.keyspace.state.Load() != divided
		ready(one && s.ack.replicas == 0 && s.subscriber.hears(channel))
	}
	stop = s.subscriber.watch(channel, time.Now(), func(message string) {
		if message == "" {
			say()
		} else if o, ok := s.offerOf(message); ok {
			take(o)
		}
	})
	say() // the channel may be subscribed to already
	return stop
}

// offerOf reads a message on the channel of a locker.
func (s *Store) offerOf(message string) (o driver.Offer, ok bool) {
	number, name, _ := strings.Cut(message, " ")
	number, ok = strings.CutPrefix(number, "=")
	number, o.Contended = strings.CutSuffix(number, "+")
	token, err := strconv.ParseInt(number, 10, 64)
	if !ok || err != nil || token <= 0 {
		return o, false
	}
	o.Token = token
	o.Key, ok = s.KeyOf(name)
	return o, ok
}

// news returns a channel and a message which tell the locker of an attentive owner that
// something has happened to the lock of a key. ok is false for any other owner.
func (s *Store) news(key, owner string) (channel, message string, ok bool) {
	id, ok := driver.IsAttentive(owner)
	if !ok {
		return "", "", false
	}
	number := owner[len(id)+1 : len(owner)-1]
	return s.names.wanted(id), number + " " + s.names.lock(key), true
}
