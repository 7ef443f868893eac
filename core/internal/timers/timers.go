// Package timers serves many timed events with one goroutine and one timer.
//
// A [Scheduler] has at most one event for each item. An item is an object of the
// owner of the Scheduler with a [Slot] embedded in it, so that an event costs no
// allocation. The owner implements what an event does: [Scheduler.Serve].
package timers

import (
	"sync"
	"time"

	"github.com/interlock-go/interlock/core/internal/clock"
)

// Linger is how long the goroutine of a [Scheduler] stays when there is no event.
// The next event then has neither to start nor to wake it.
const Linger = time.Second

// Scheduler serves items when their time has come. Its goroutine exists only while
// there are events, and for [Linger] after the last one.
//
// The owner sets the exported fields before the first call of a method and does not
// change them. All methods are safe for concurrent use.
//
// Lock order: the owner's mutex for scheduling, then the Scheduler's. The Scheduler
// calls Serve without its mutex, and Go with it.
type Scheduler[T Item] struct {
	// Clock tells the time.
	Clock *clock.Clock
	// Go runs a function on a new goroutine.
	Go func(func())
	// Serve handles the items that are due at the time now. The Scheduler has taken the
	// items out. Serve schedules an item again if it has another event. Between the two,
	// another goroutine may have scheduled or cancelled an item, so Serve looks at each
	// under the owner's mutex. Serve must not keep batch, and delays all other events as
	// long as it runs.
	Serve func(batch []T, now clock.Instant)

	mu      sync.Mutex
	events  heap[T]
	wakeAt  clock.Instant // when the goroutine wakes by itself; 0: it is awake
	poke    chan struct{} // wakes it earlier
	alive   bool          // the goroutine exists
	idle    bool          // it sleeps with no event to sleep for
	stopped bool
}

// Schedule sets the time of the item's event, in place of an earlier one.
//
// When another event is served, the event is served with it up to tolerance before
// its time, and two seconds at most. It does not wake the goroutine earlier.
func (s *Scheduler[T]) Schedule(item T, at clock.Instant, tolerance time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stopped {
		return
	}
	i := s.events.put(item, at, tolerance)
	switch {
	case !s.alive:
		s.alive, s.idle, s.wakeAt = true, false, 0
		if s.poke == nil {
			s.poke = make(chan struct{}, 1)
		}
		s.Go(s.run)
	case i == 0 && at < s.wakeAt:
		s.wake()
	}
}

// Cancel takes the item's event out, if there is one. Serve may be about to get the
// item all the same.
func (s *Scheduler[T]) Cancel(item T) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.events.remove(item)
}

// Stop drops all events, and returns their items in no order. The goroutine ends; a
// call of Serve that is about to begin, or under way, takes place. Schedule does
// nothing from now on.
func (s *Scheduler[T]) Stop() (dropped []T) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stopped = true
	if s.alive {
		s.wake()
	}
	return s.events.clear()
}

// Items returns the items that have an event, in no order. An item that Serve has got
// at this moment is not among them.
func (s *Scheduler[T]) Items() []T {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.events.all()
}

// wake makes the goroutine look at the events. Called with s.mu held.
func (s *Scheduler[T]) wake() {
	select {
	case s.poke <- struct{}{}:
	default:
	}
}

// run is the goroutine.
func (s *Scheduler[T]) run() {
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	var batch []T
	for {
		now := s.Clock.Now()
		due, pause, done := s.take(batch[:0], now)
		if done {
			return
		}
		if len(due) > 0 {
			s.Serve(due, now)
			clear(due)
			batch = due
			continue
		}
		timer.Reset(pause)
		select {
		case <-timer.C:
		case <-s.poke:
		}
	}
}

// take appends the items that are due to batch. If there are none, it returns how
// long to sleep, or that the goroutine is done.
func (s *Scheduler[T]) take(batch []T, now clock.Instant) (due []T, pause time.Duration, done bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stopped || s.events.len() == 0 && s.idle {
		s.alive = false
		return batch, 0, true
	}
	for s.events.len() > 0 {
		at, tolerance := s.events.first()
		if at > now.Add(tolerance) {
			break
		}
		item := s.events.next()
		s.events.remove(item)
		batch = append(batch, item)
	}
	s.idle = len(batch) == 0 && s.events.len() == 0
	switch {
	case len(batch) > 0:
		s.wakeAt = 0 // an item that is scheduled now is looked at before the sleep
	case s.idle:
		s.wakeAt = now.Add(Linger)
	default:
		s.wakeAt, _ = s.events.first()
	}
	return batch, s.wakeAt.Sub(now), false
}

// Item is what a [Scheduler] serves: a pointer to a struct that has a [Slot]
// embedded.
type Item interface {
	slot() *Slot
}

// Slot says where an item is in its [Scheduler]. The zero value says that the item is not
// in. An item belongs to one Scheduler at a time.
type Slot struct {
	number int32 // from 1; guarded by the Scheduler's mutex
}

func (s *Slot) slot() *Slot { return s }

// event says when the item of a slot is to be served.
type event struct {
	at        clock.Instant
	tolerance int32 // in ns: how much earlier it may be served
	slot      int32
}

// heap has the next event first. Each node has four children: a move is dearer than a
// comparison. An item has a slot as long as it is in, which knows where the event of
// the item is. Moves stay in these lists, and do not write to the items: there may be
// many, and few of them in the processor's cache.
type heap[T Item] struct {
	events []event
	items  []T     // by slot
	index  []int32 // by slot: where its event is; of a free slot, the next free slot
	free   int32   // the first free slot, from 1; zero: none
}

const children = 4

// len is how many events there are.
func (h *heap[T]) len() int { return len(h.events) }

// first returns when the next event is, and how much earlier its item may be served.
func (h *heap[T]) first() (at clock.Instant, tolerance time.Duration) {
	return h.events[0].at, time.Duration(h.events[0].tolerance)
}

// next is the item of the next event.
func (h *heap[T]) next() T { return h.items[h.events[0].slot] }

// put sets the event of an item, and returns where the event is in the heap. A tolerance is at most two
// seconds.
func (h *heap[T]) put(item T, at clock.Instant, tolerance time.Duration) (i int) {
	e := event{at: at, tolerance: int32(min(tolerance, maxTolerance))} //nolint:gosec // it fits
	if p := item.slot(); p.number == 0 {
		if h.free == 0 {
			e.slot = int32(len(h.items)) //nolint:gosec // no process has 2^31 items
			h.items, h.index = append(h.items, item), append(h.index, 0)
		} else {
			e.slot = h.free - 1
			h.free = h.index[e.slot]
			h.items[e.slot] = item
		}
		p.number = e.slot + 1
		i = len(h.events)
		h.events = append(h.events, e)
	} else {
		e.slot = p.number - 1
		i = int(h.index[e.slot])
		h.events[i] = e
	}
	return h.fix(i)
}

const maxTolerance = 2 * time.Second

// remove takes the event of an item out, if it is in.
func (h *heap[T]) remove(item T) {
	p := item.slot()
	if p.number == 0 {
		return
	}
	slot := p.number - 1
	i := int(h.index[slot])
	var none T
	p.number, h.items[slot], h.index[slot], h.free = 0, none, h.free, slot+1
	last := len(h.events) - 1
	moved := h.events[last]
	h.events = h.events[:last]
	if i < last {
		h.events[i] = moved
		h.fix(i)
	}
}

// all returns the items, in no order.
func (h *heap[T]) all() []T {
	items := make([]T, len(h.events))
	for i, e := range h.events {
		items[i] = h.items[e.slot]
	}
	return items
}

// clear takes all events out, and returns their items.
func (h *heap[T]) clear() []T {
	items := h.all()
	for _, item := range items {
		item.slot().number = 0
	}
	*h = heap[T]{}
	return items
}

// fix moves the event at i to where it belongs, and returns where that is.
func (h *heap[T]) fix(i int) int {
	events := h.events
	e := events[i]
	for i > 0 {
		parent := (i - 1) / children
		if events[parent].at <= e.at {
			break
		}
		h.set(i, events[parent])
		i = parent
	}
	for {
		first := children*i + 1
		if first >= len(events) {
			break
		}
		child := first
		for c := first + 1; c < min(first+children, len(events)); c++ {
			if events[c].at < events[child].at {
				child = c
			}
		}
		if e.at <= events[child].at {
			break
		}
		h.set(i, events[child])
		i = child
	}
	h.set(i, e)
	return i
}

func (h *heap[T]) set(i int, e event) {
	h.events[i] = e
	h.index[e.slot] = int32(i) //nolint:gosec // no process has 2^31 items
}
