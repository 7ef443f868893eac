package core

import (
	"time"

	"github.com/interlock-go/interlock/core/internal/clock"
)

// event is what the watchdog does next for a tenure, and when; soon is how much
// earlier it may be done, together with others.
type event struct {
	at   clock.Instant
	soon time.Duration
	ten  *tenure
}

// agenda is a heap of events, the next first, one for each tenure, which knows its
// place. It is container/heap without boxing an event for every call, and four
// wide: a move visits a tenure, so fewer moves count for more than fewer looks.
type agenda []event

const wide = 4

// put sets when the next event of a tenure is.
func (a *agenda) put(e event) {
	i := int(e.ten.index)
	if i < 0 {
		i = len(*a)
		*a = append(*a, e)
	} else {
		(*a)[i] = e
	}
	a.settle(i)
}

// remove takes a tenure out, if it is in.
func (a *agenda) remove(ten *tenure) {
	i := int(ten.index)
	if i < 0 {
		return
	}
	ten.index = -1
	last := len(*a) - 1
	moved := (*a)[last]
	(*a)[last] = event{}
	*a = (*a)[:last]
	if i < last {
		(*a)[i] = moved
		a.settle(i)
	}
}

// settle moves the event at i to where it belongs.
func (a *agenda) settle(i int) {
	h := *a
	e := h[i]
	for i > 0 {
		parent := (i - 1) / wide
		if h[parent].at <= e.at {
			break
		}
		h.set(i, h[parent])
		i = parent
	}
	for {
		first := wide*i + 1
		if first >= len(h) {
			break
		}
		child := first
		for c := first + 1; c < min(first+wide, len(h)); c++ {
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
}

func (a agenda) set(i int, e event) {
	a[i] = e
	e.ten.index = int32(i) //nolint:gosec // a process has no 2^31 locks
}
