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
	position int32 // in the heap, from 1; guarded by the Scheduler's mutex
}

func (p *Place) place() *Place { return p }

// event says when an item is to be served.
type event[T Item] struct {
	at        clock.Instant
	tolerance time.Duration // how much earlier it may be served
	item      T
}

// heap has the next event first. Each item knows its place. It has no boxing, as
// container/heap does, and each node has four children: a move writes to an item,
// so fewer moves count for more than fewer comparisons.
type heap[T Item] []event[T]

const children = 4

// put sets the event of an item, and returns its place.
func (h *heap[T]) put(e event[T]) (place int) {
	i := int(e.item.place().position) - 1
	if i < 0 {
		i = len(*h)
		*h = append(*h, e)
	} else {
		(*h)[i] = e
	}
	return h.fix(i)
}

// remove takes the event of an item out, if it is in.
func (h *heap[T]) remove(item T) {
	p := item.place()
	i := int(p.position) - 1
	if i < 0 {
		return
	}
	p.position = 0
	last := len(*h) - 1
	moved := (*h)[last]
	(*h)[last] = event[T]{}
	*h = (*h)[:last]
	if i < last {
		(*h)[i] = moved
		h.fix(i)
	}
}

// clear takes all events out, and returns their items.
func (h *heap[T]) clear() (items []T) {
	for _, e := range *h {
		e.item.place().position = 0
		items = append(items, e.item)
	}
	*h = nil
	return items
}

// fix moves the event at i to its place, and returns that.
func (h heap[T]) fix(i int) (place int) {
	e := h[i]
	for i > 0 {
		parent := (i - 1) / children
		if h[parent].at <= e.at {
			break
		}
		h.set(i, h[parent])
		i = parent
	}
	for {
		first := children*i + 1
		if first >= len(h) {
			break
		}
		child := first
		for c := first + 1; c < min(first+children, len(h)); c++ {
			if h[c].at < h[child].at {
				child = c
			}
		}
		if e.at <= h[child].at {
			break
		}
		h.set(i, h[child])
		i = child
	}
	h.set(i, e)
	return i
}

func (h heap[T]) set(i int, e event[T]) {
	h[i] = e
	e.item.place().position = int32(i) + 1 //nolint:gosec // no process has 2^31 items
}
