// Package waits makes calls to lockers ([driver.Store], Calls) for a store that watches keys: it watches
// the keys that the lockers of the process wait for, and reads the list of each release for them.
package waits

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
)

// Spare is how much longer than until its locker asks again a key is watched, where the store does not learn when
// a locker leaves.
const Spare = 10 * time.Second

// Told takes the list of a release, and how many places became free; zero: the lock did. An empty list says
// that there may have been a release.
type Told func(list driver.Waiters, free int)

// Waits are the lockers of a process, and the keys that they wait for. [New] makes them.
type Waits struct {
	watch func(id, key string, since time.Time, told Told) (stop func())

	mu     sync.Mutex
	hear   map[string]func(driver.Call) // by the id of the locker
	missed map[string]bool              // lockers that were called before their calls began
	keys   map[wait]*watching
}

// wait is a locker that waits for a key.
type wait struct{ id, key string }

type watching struct {
	stop  func()
	until time.Time // zero: until the locker declines
}

// New makes [Waits] for a store that watches a key for a locker since an instant by watch. It returns at
// once, and so does its stop, which waits for no call of told.
func New(watch func(id, key string, since time.Time, told Told) (stop func())) *Waits {
	return &Waits{watch: watch, hear: map[string]func(driver.Call){}, missed: map[string]bool{}, keys: map[wait]*watching{}}
}

// Calls implements [driver.Store] for a store that reaches no locker with an offer.
func (w *Waits) Calls(id string, hear func(driver.Call)) (stop func()) {
	w.mu.Lock()
	w.hear[id] = hear
	missed := w.missed[id]
	delete(w.missed, id)
	w.mu.Unlock()
	if missed {
		hear(driver.Call{})
	}
	return func() {
		w.mu.Lock()
		delete(w.hear, id)
		delete(w.missed, id)
		var stops []func()
		for of, k := range w.keys {
			if of.id == id {
				stops = append(stops, k.stop)
				delete(w.keys, of)
			}
		}
		w.mu.Unlock()
		for _, stop := range stops {
			stop()
		}
	}
}

// Tell calls a locker, or all if there is no id. It reports whether the locker is one of this process.
func (w *Waits) Tell(id string, c driver.Call) (here bool) {
	var all []func(driver.Call)
	w.mu.Lock()
	for other, hear := range w.hear {
		if id == "" || id == other {
			all = append(all, hear)
		}
	}
	w.mu.Unlock()
	for _, hear := range all {
		hear(c)
	}
	return len(all) > 0
}

// Asked notes the reply to a request. A locker that was refused waits for the key; if the store does not learn
// when a locker leaves, bounded says so.
func (w *Waits) Asked(ask *driver.AcquireRequest, rep driver.Reply, err error, bounded bool) {
	switch {
	case ask.Waiter == "" || err != nil:
	case rep.Granted || rep.Out:
		w.Left(ask.Waiter.ID(), ask.Key)
	default:
		until := time.Time{}
		if bounded {
			until = time.Now().Add(max(rep.TTL, 0) + Spare)
		}
		w.Waits(ask.Waiter.ID(), ask.Key, rep.Sent, until)
	}
}

// Waits notes that a locker waits for a key, until an instant, or if that is zero until it leaves. It learns of
// each release since an instant.
func (w *Waits) Waits(id, key string, since, until time.Time) {
	of, now := wait{id, key}, time.Now()
	w.mu.Lock()
	if k := w.keys[of]; k != nil {
		k.until = until
		w.mu.Unlock()
		return
	}
	var over []func()
	for other, old := range w.keys {
		if !old.until.IsZero() && now.After(old.until) {
			over = append(over, old.stop)
			delete(w.keys, other)
		}
	}
	k := &watching{until: until, stop: func() {}}
	w.keys[of] = k
	w.mu.Unlock()
	for _, stop := range over {
		stop()
	}
	w.begin(of, k, since)
}

// begin watches a key. It may be told of releases before it returns.
func (w *Waits) begin(of wait, k *watching, since time.Time) {
	stop := w.watch(of.id, of.key, since, func(list driver.Waiters, free int) { w.told(of, list, free) })
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

// told calls a locker after a release.
func (w *Waits) told(of wait, list driver.Waiters, free int) {
	c, called := list.Call(of.id, free)
	if !called {
		n := 0
		for range list.All() {
			n++
		}
		if free > 0 || n >= fullList {
			return // the places are others', or it asks by time
		}
		c = driver.Call{What: driver.Turn, In: unnamed}
	}
	c.Key = of.key
	w.mu.Lock()
	hear := w.hear[of.id]
	if hear == nil && w.keys[of] != nil {
		w.missed[of.id] = true
	}
	w.mu.Unlock()
	if hear != nil {
		hear(c)
	}
}

// Left notes that a locker does not wait for a key any more.
func (w *Waits) Left(id, key string) {
	of := wait{id, key}
	w.mu.Lock()
	k := w.keys[of]
	delete(w.keys, of)
	w.mu.Unlock()
	if k != nil {
		k.stop()
	}
}
