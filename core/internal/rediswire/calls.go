package rediswire

import (
	"strings"
	"sync"
	"time"

	"github.com/interlock-go/interlock/core/driver"
)

// mostEarly bounds the calls that are kept for watches to come. A watch begins right after the answer
// to the request that has put its locker into the list, and a release may call the locker in between.
const mostEarly = 1024

// calls are the calls to one locker of this process for all keys that its callers wait for. They come
// on the channel of the locker: ":", the called lockers, a space and the name of a lock (lua/call.lua).
// A call is a hint. It may be lost, late, repeated or forged.
type calls struct {
	users int    // watches; guarded by the registry's mutex, as stop
	stop  func() // ends the subscription

	mu      sync.Mutex
	watches map[string][]*watch // by the name of the lock
	early   map[string]turn     // the last call to a lock without a watch, likewise
	lost    time.Time           // when calls may have been lost
}

// turn is a call.
type turn struct {
	at     time.Time
	signal driver.Signal
}

// watch is a call of [Store.Watch].
type watch struct{ wake func(driver.Signal) }

// called has the calls to the lockers of this process, by their ids.
type called struct {
	mu sync.Mutex
	to map[string]*calls
}

// join returns the calls to a locker, with one more user. A new subscription looks back until since.
func (r *called) join(s *Store, id string, since time.Time) *calls {
	r.mu.Lock()
	defer r.mu.Unlock()
	c := r.to[id]
	if c == nil {
		c = &calls{watches: map[string][]*watch{}, early: map[string]turn{}}
		c.stop = s.subscriber.watch(s.names.wanted(id), since, c.receive)
		if r.to == nil {
			r.to = map[string]*calls{}
		}
		r.to[id] = c
	}
	c.users++
	return c
}

// leave takes a user away. The subscription ends with the last one.
func (r *called) leave(c *calls, id string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if c.users--; c.users == 0 {
		delete(r.to, id)
		c.stop()
	}
}

// Watch implements [driver.Store]. A locker is called by its id, so a watch without a locker reports
// nothing.
func (s *Store) Watch(id, key string, since time.Time, wake func(driver.Signal)) (stop func()) {
	if id == "" {
		return func() {}
	}
	c, lock, w := s.called.join(s, id, since), s.names.lock(key), &watch{wake}
	if signal, missed := c.begin(lock, since, w); missed {
		wake(signal)
	}
	return sync.OnceFunc(func() {
		c.end(lock, w)
		s.called.leave(c, id)
	})
}

// begin adds a watch of a lock. It returns the signal that the watch has missed since an instant.
func (c *calls) begin(lock string, since time.Time, w *watch) (signal driver.Signal, missed bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.watches[lock] = append(c.watches[lock], w)
	early := c.early[lock]
	delete(c.early, lock)
	switch {
	case c.lost.After(since):
		return driver.Signal{}, true
	case early.at.After(since) && early.signal.Now == 0:
		return early.signal, true
	case early.at.After(since): // the lock may have become free before
		return driver.Signal{}, true
	}
	return driver.Signal{}, false
}

// end takes a watch away.
func (c *calls) end(lock string, w *watch) {
	c.mu.Lock()
	defer c.mu.Unlock()
	left := without(c.watches[lock], w)
	if c.watches[lock] = left; len(left) == 0 {
		delete(c.watches, lock)
	}
}

// receive takes a message on the channel of the locker. An empty message says that messages may have
// been lost: then all watches look.
func (c *calls) receive(message string) {
	if message == "" {
		for _, w := range c.all(time.Now()) {
			w.wake(driver.Signal{})
		}
		return
	}
	payload, lock, _ := strings.Cut(message, " ")
	if list, ok := strings.CutPrefix(payload, ":"); ok {
		t := turn{time.Now(), signalOf(list)}
		for _, w := range c.of(lock, t) {
			w.wake(t.signal)
		}
	}
}

// all returns all watches, and notes that calls may have been lost before now.
func (c *calls) all(now time.Time) (all []*watch) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.lost = now
	clear(c.early)
	for _, some := range c.watches {
		all = append(all, some...)
	}
	return all
}

// of returns the watches of a lock, and keeps the call if there is none yet.
func (c *calls) of(lock string, t turn) []*watch {
	c.mu.Lock()
	defer c.mu.Unlock()
	if all := c.watches[lock]; len(all) > 0 {
		return append([]*watch(nil), all...)
	}
	if len(c.early) >= mostEarly {
		c.lost = t.at
		clear(c.early)
	}
	c.early[lock] = t
	return nil
}
