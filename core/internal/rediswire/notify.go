package rediswire

import (
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/interlock-go/interlock/core/driver"
)

// Calls implements [driver.Store]: each locker has a channel, which tells of all keys (lua/call.lua,
// freed.lua, want.lua).
func (s *Store) Calls(id string, hear func(driver.Call)) (stop func()) {
	channel := s.names.wanted(id)
	var mu sync.Mutex // so that the last that is said is the state
	unsure := func() {
		mu.Lock()
		defer mu.Unlock()
		hear(driver.Call{Reached: s.offersTo(channel)})
	}
	stop = s.subscriber.watch(channel, time.Now(), func(message string) {
		if message == "" {
			unsure()
		} else if c, ok := s.callOf(id, message); ok {
			hear(c)
		}
	})
	if s.subscriber.hears(channel) {
		unsure() // nothing else says so
	}
	return stop
}

// offersTo reports whether a locker can be offered a lock on its channel. Where a grant has to be acknowledged by
// replicas, and where several servers have the locks, the store reaches no locker.
func (s *Store) offersTo(channel string) bool {
	one := !s.announce.sharded.Load() && s.keyspace != nil && s.keyspace.state.Load() != divided
	return one && s.ack.replicas == 0 && s.subscriber.hears(channel)
}

// callOf reads a message on the channel of a locker: something, a space and the name of a lock. Anything else
// is ignored, also messages of later versions.
//
//	:list   its turn comes, with the lockers that are called
//	=token  it is offered the lock; "+" behind the token says that others wait
//	number  another locker waits for the lock of the owner with that number; zero: a newer caller has come
func (s *Store) callOf(id, message string) (c driver.Call, ok bool) {
	what, name, _ := strings.Cut(message, " ")
	key, ok := s.KeyOf(name)
	if !ok {
		return c, false
	}
	if list, isList := strings.CutPrefix(what, ":"); isList {
		c, ok = turnOf(list, id)
	} else if offer, isOffer := strings.CutPrefix(what, "="); isOffer {
		offer, others := strings.CutSuffix(offer, "+")
		token, err := strconv.ParseInt(offer, 10, 64)
		c, ok = driver.Call{What: driver.Offered, Token: token, Others: others}, err == nil && token > 0
	} else if number, err := strconv.ParseUint(what, 10, 64); err != nil {
		ok = false
	} else if number == 0 {
		c.What = driver.Displaced
	} else {
		c = driver.Call{What: driver.Wanted, Owner: driver.Attentive(id + ":" + what)}
	}
	c.Key = key
	return c, ok
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
