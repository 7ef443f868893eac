package timers

import (
	"time"

	"github.com/interlock-go/interlock/core/internal/clock"
)

// Item is what a [Scheduler] serves: a pointer to a struct that has a [Place]
// embedded.
type Item interface {
	place() *Place
}

// Place is where an item is in its [Scheduler]. The zero value says that it is not
// in. An item belongs to one Scheduler at a time.
type Place struct {
	slot int32 // from 1; guarded by the Scheduler's mutex
}

func (p *Place) place() *Place { return p }

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
	places []int32 // by slot: where its event is; for a free one, the next free one
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

// put sets the event of an item, and returns its place. A tolerance is at most two
// seconds.
func (h *heap[T]) put(item T, at clock.Instant, tolerance time.Duration) (place int) {
	e := event{at: at, tolerance: int32(min(tolerance, maxTolerance))} //nolint:gosec // it fits
	if p := item.place(); p.slot == 0 {
		e.slot = h.enter(item)
		p.slot = e.slot + 1
		place = len(h.events)
		h.events = append(h.events, e)
	} else {
		e.slot = p.slot - 1
		place = int(h.places[e.slot])
		h.events[place] = e
	}
	return h.fix(place)
}

const maxTolerance = 2 * time.Second

// enter gives an item a slot.
func (h *heap[T]) enter(item T) (slot int32) {
	if h.free == 0 {
		h.items, h.places = append(h.items, item), append(h.places, 0)
		return int32(len(h.items)) - 1 //nolint:gosec // no process has 2^31 items
	}
	slot = h.free - 1
	h.free = h.places[slot]
	h.items[slot] = item
	return slot
}

// remove takes the event of an item out, if it is in.
func (h *heap[T]) remove(item T) {
	p := item.place()
	if p.slot == 0 {
		return
	}
	slot := p.slot - 1
	i := int(h.places[slot])
	var none T
	p.slot, h.items[slot], h.places[slot], h.free = 0, none, h.free, slot+1
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
		item.place().slot = 0
	}
	*h = heap[T]{}
	return items
}

// fix moves the event at i to its place, and returns that.
func (h *heap[T]) fix(i int) (place int) {
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
	h.places[e.slot] = int32(i) //nolint:gosec // no process has 2^31 items
}
