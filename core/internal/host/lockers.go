// Package host has what stores have in common that carry requests out in the process of the caller, by the rules of
// package keystate, and have a server compare: pglock, and casstore for etcd and ZooKeeper. A quorum calls its
// lockers by it, too.
package host

import (
	"maps"
	"slices"
	"sync"

	"github.com/interlock-go/interlock/core/driver"
)

// OffersAfter is for how long a locker that was first seen in a list gets offers ([driver.Offered]). It has to have asked in
// the last half of an offer's time, so later it could not take one. A locker that has died costs the others no more than one
// offer, however many have died with it.
const OffersAfter = driver.OfferLasts / 2

// Lockers are the lockers of a process that a store calls. The zero value has none. It is safe for concurrent use.
type Lockers struct {
	mu      sync.Mutex
	hear    map[string]func(driver.Call) // by id
	reached bool
}

// Calls has the calls to a locker heard ([driver.Store]). The first call says whether the store reaches the locker, if it does:
// earlier calls may have been lost.
func (l *Lockers) Calls(id string, hear func(driver.Call)) (stop func()) {
	l.mu.Lock()
	if l.hear == nil {
		l.hear = map[string]func(driver.Call){}
	}
	l.hear[id] = hear
	reached := l.reached
	l.mu.Unlock()
	if reached {
		hear(driver.Call{Reached: true})
	}
	return func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		delete(l.hear, id)
	}
}

// Has reports whether a locker of the process hears calls.
func (l *Lockers) Has(id string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.hear[id] != nil
}

// Call calls a locker. It reports whether that is one of the process. The locker takes mutexes
// meanwhile, and may send requests to the store.
func (l *Lockers) Call(id string, c driver.Call) (here bool) {
	l.mu.Lock()
	hear := l.hear[id]
	l.mu.Unlock()
	if hear != nil {
		hear(c)
	}
	return hear != nil
}

// Unsure says to all lockers that calls may have been lost, and whether the store reaches them from now on.
func (l *Lockers) Unsure(reached bool) {
	l.mu.Lock()
	l.reached = reached
	all := slices.Collect(maps.Values(l.hear))
	l.mu.Unlock()
	for _, hear := range all {
		hear(driver.Call{Reached: reached})
	}
}
