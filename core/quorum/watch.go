package quorum

import (
	"strings"
	"sync"
	"time"

	"github.com/interlock-go/interlock/core/driver"
)

const (
	// fewWait is how long a release that fewer than a majority has announced is kept from
	// the caller. A majority has it within that time where the nodes are near, and a try
	// before that would find the lock held on the others.
	fewWait = time.Millisecond
	// minLook and maxLook bound the pauses between looks for no other reason than
	// that a node's subscription was made or lost.
	minLook = 5 * time.Millisecond
	maxLook = time.Second
)

// watch receives the releases of a key from all nodes. The announcement of a release by a
// majority wakes the caller. If fewer have announced it after a short while, they wake it:
// the others may be down. Then the majority wakes it once more, since a try may have
// reached some nodes before the release.
type watch struct {
	store *Store
	wake  func(list driver.Waiters)

	mu      sync.Mutex
	stopped bool
	heard   [8]announcement // the last ones
	next    int
	timer   *time.Timer // of the look
	armed   bool
	pause   time.Duration
	few     *time.Timer // of fewWait
	latest  int         // the announcement for which it was set
}

// announcement is one release, by the owner that gave the lock up.
type announcement struct {
	owner string
	list  driver.Waiters
	count int
}

// watch listens on all nodes: wake is called when a majority has announced a release of a key, and before
// that if only fewer have after a millisecond. An empty list says that no node is sure.
func (s *Store) watch(key string, since time.Time, wake func(list driver.Waiters)) (stop func()) {
	w := &watch{store: s, wake: wake, pause: minLook}
	stops := make([]func(), len(s.nodes))
	for i, n := range s.nodes {
		stops[i] = n.server.Watch(key, since, w.told)
	}
	return func() {
		w.mu.Lock()
		w.stopped = true
		for _, timer := range []*time.Timer{w.timer, w.few} {
			if timer != nil {
				timer.Stop()
			}
		}
		w.mu.Unlock()
		for _, stop := range stops {
			stop()
		}
	}
}

// told takes what a node says: an owner has released the lock, or, without one,
// that the node cannot be sure.
//
// The lock order is the caller's mutex, which it may hold when it stops the watch,
// then ours: so wake is called without ours.
func (w *watch) told(owner string, list driver.Waiters) {
	if owner == "" {
		w.unsure()
		return
	}
	w.store.gone.add(owner)
	w.mu.Lock()
	w.pause = minLook
	at := -1
	for i := range w.heard {
		if w.heard[i].owner == owner {
			at = i
		}
	}
	if at < 0 {
		at = w.next
		w.next = (w.next + 1) % len(w.heard)
		w.heard[at] = announcement{owner: owner, list: list}
	}
	a := &w.heard[at]
	// The list of the first node gives the order. Waiters that only other nodes know follow
	// after it.
	for other := range list.All() {
		if !strings.Contains(string(a.list), string(other)) {
			a.list = driver.List(driver.Waiter(a.list), other)
		}
	}
	a.count++
	if w.stopped {
		w.mu.Unlock()
		return
	}
	if a.count == 1 {
		w.latest = at
		if w.few == nil {
			w.few = time.AfterFunc(fewWait, w.hasFew)
		} else {
			w.few.Reset(fewWait)
		}
	}
	news := a.count == w.store.majority
	if news && w.latest == at {
		w.few.Stop()
	}
	announced := a.list
	w.mu.Unlock()
	if news {
		w.wake(announced)
	}
}

// hasFew wakes the caller for a release that only a minority has announced so far.
func (w *watch) hasFew() {
	w.mu.Lock()
	a := &w.heard[w.latest]
	few := !w.stopped && a.count < w.store.majority
	announced := a.list
	w.mu.Unlock()
	if few {
		w.wake(announced)
	}
}

// unsure makes the caller look for itself a short while later. When subscriptions are
// made, all nodes call this at nearly the same time, and a node that is down calls it
// again and again. The look after the last of them sees what any of them missed.
func (w *watch) unsure() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.stopped || w.armed {
		return // the look that is due will see it
	}
	w.armed = true
	if w.timer == nil {
		w.timer = time.AfterFunc(w.pause, w.look)
	} else {
		w.timer.Reset(w.pause)
	}
	w.pause = min(2*w.pause, maxLook)
}

func (w *watch) look() {
	w.mu.Lock()
	stopped := w.stopped
	w.armed = false
	w.mu.Unlock()
	if !stopped {
		w.wake("")
	}
}
