package quorum

import (
	"sync"
	"time"

	"github.com/interlock-go/interlock/core/driver"
)

const (
	// unnamed is after what time a locker asks that is not in the list of a release: it has lost its place, or
	// had none yet.
	unnamed = 5 * time.Millisecond
	// fullList is from how many lockers on a list counts as full: lockers that are not in it ask by time.
	fullList = 60
	// spare is how much longer than until its locker asks again a key is watched: the store does not learn when
	// a locker leaves.
	spare = 10 * time.Second
)

// waits are the keys that lockers of this process wait for. The store watches them, and reads the list of each release
// for its lockers.
type waits struct {
	mu   sync.Mutex
	keys map[place]*waiting
}

// place is a locker that waits for a key.
type place struct{ id, key string }

// waiting is the watch of a key for a locker.
type waiting struct {
	stop   func()
	until  time.Time
	missed bool // the locker was called before its calls began
}

// Calls implements [driver.Store].
func (s *Store) Calls(id string, hear func(driver.Call)) (stop func()) {
	end, missed := s.lockers.Calls(id, hear), false
	s.waits.mu.Lock()
	for of, k := range s.waits.keys {
		missed = missed || of.id == id && k.missed
	}
	s.waits.mu.Unlock()
	if missed {
		hear(driver.Call{})
	}
	return func() {
		end()
		s.unwatch(func(of place, _ *waiting) bool { return of.id == id })
	}
}

// asked notes the reply to a request: a locker that was refused waits for the key.
func (s *Store) asked(ask *driver.AcquireRequest, rep driver.Reply, err error) (driver.Reply, error) {
	of := place{ask.Waiter.ID(), ask.Key}
	switch {
	case ask.Waiter == "" || err != nil:
	case rep.Granted:
		s.unwatch(func(other place, _ *waiting) bool { return other == of })
	default:
		s.awaits(of, rep.Sent, time.Now().Add(max(rep.TTL, 0)+spare))
	}
	return rep, err
}

// awaits has a locker called that waits for a key until an instant, after each release since an instant.
func (s *Store) awaits(of place, since, until time.Time) {
	now, w := time.Now(), &s.waits
	w.mu.Lock()
	k := w.keys[of]
	if known := k != nil; known {
		k.until = until
		w.mu.Unlock()
		return
	}
	k = &waiting{until: until, stop: func() {}}
	w.keys[of] = k
	w.mu.Unlock()
	s.unwatch(func(other place, old *waiting) bool { return other != of && now.After(old.until) })
	stop := s.watch(of.key, since, func(list driver.Waiters) { s.released(of, k, list) }) // also before it returns
	w.mu.Lock()
	still := w.keys[of] == k
	if still {
		k.stop = stop
	}
	w.mu.Unlock()
	if !still {
		stop() // its locker has left meanwhile
	}
}

// released calls a locker after a release.
func (s *Store) released(of place, k *waiting, list driver.Waiters) {
	c, called := list.Call(of.id, 0)
	if !called {
		n := 0
		for range list.All() {
			n++
		}
		if n >= fullList {
			return // it asks by time
		}
		c = driver.Call{What: driver.Turn, In: unnamed}
	}
	if c.Key = of.key; !s.lockers.Call(of.id, c) {
		s.waits.mu.Lock()
		defer s.waits.mu.Unlock()
		k.missed = true
	}
}

// unwatch ends watches.
func (s *Store) unwatch(over func(place, *waiting) bool) {
	var stops []func()
	s.waits.mu.Lock()
	for of, k := range s.waits.keys {
		if over(of, k) {
			stops = append(stops, k.stop)
			delete(s.waits.keys, of)
		}
	}
	s.waits.mu.Unlock()
	for _, stop := range stops {
		stop()
	}
}
