package quorum

import (
	"strings"
	"sync"
	"time"

	"github.com/interlock-go/interlock/core/driver"
)

const (
	// minLook and maxLook bound the pauses between looks for no other reason than
	// that a node's subscription was made or lost.
	minLook = 5 * time.Millisecond
	maxLook = time.Second
)

// watch receives the releases of a key from all nodes. The first announcement of a
// release wakes the caller. Announcements of the same release by other nodes wake it
// only once more, when they make a majority: a try that the caller sent after the
// first announcement may have reached some nodes before the release.
type watch struct {
	store *Store
	wake  func(driver.Signal)

	mu      sync.Mutex
	stopped bool
	heard   [8]announcement // the last ones
	next    int
	timer   *time.Timer
	armed   bool
	pause   time.Duration
}

// announcement is one release, by the owner that gave the lock up.
type announcement struct {
	owner string
	list  string
	count int
}

// Watch implements [driver.Store]. It listens on all nodes: wake is called for the first
// announcement of a release, and once more when a majority has announced it.
func (s *Store) Watch(key string, since time.Time, wake func(driver.Signal)) (stop func()) {
	w := &watch{store: s, wake: wake, pause: minLook}
	stops := make([]func(), len(s.nodes))
	for i, n := range s.nodes {
		stops[i] = n.server.Watch(key, since, w.told)
	}
	return func() {
		w.mu.Lock()
		w.stopped = true
		if w.timer != nil {
			w.timer.Stop()
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
func (w *watch) told(owner, list string) {
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
	// The list of the first node gives the order. Waiters that only other nodes
	// know follow behind it.
	for id := range strings.SplitSeq(list, ",") {
		if !strings.Contains(a.list, id) {
			a.list += "," + id
		}
	}
	a.count++
	news := !w.stopped && (a.count == 1 || a.count == w.store.majority)
	signal := driver.Signal{Next: a.list}
	w.mu.Unlock()
	if news {
		w.wake(signal)
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
		w.wake(driver.Signal{})
	}
}
