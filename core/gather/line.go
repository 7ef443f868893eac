package gather

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/interlock-go/interlock/core"
)

// item is a request with its caller. Its fields without a remark are set before other goroutines
// have it.
type item[Req, Res any] struct {
	key      string
	req      Req
	held     string // the locks that its caller holds, as text; mostly empty
	bytes    int
	since    time.Time
	deadline time.Time // of the wait; zero: none

	// wake is for the caller. At most one signal asks it to look, and one says that it has its outcome.
	wake  chan signal
	timer *time.Timer // of the caller
	over  bool        // of the caller: res and err are there

	// Of the goroutine that carries the item out, until it sends finished.
	res    Res
	err    error
	beaten []*item[Req, Res] // items that get the same result; before that guarded by the mutex

	// Guarded by the mutex of the group.
	prev, next *item[Req, Res]
	state      state
	asks       bool                    // its caller asks for the lock, or lingers
	leave      context.CancelCauseFunc // ends that, when another caller takes the item
	alone      bool                    // its caller asks, and nothing but its own context ends that: no other caller may take it
}

type signal int8

const (
	look signal = iota
	finished
)

// state is the progress of an item.
type state int8

const (
	waiting    state = iota // in a line
	taken                   // in a batch, or it has its outcome
	superseded              // it gets the outcome of a newer item
)

// line has the items that wait for a key, in their order.
type line[Req, Res any] struct {
	first, last *item[Req, Res]
	n, bytes    int
	open        bool // not before that a caller asks for the lock
	opens       time.Time
}

// contenders is the number of callers of a line that ask for the lock: the leader, and one more. When
// the leader leaves, the process keeps its place among the processes that wait.
const contenders = 2

var (
	errTaken = errors.New("the item was taken")
	errNewer = errors.New("a newer item came")
)

// newItem makes an item, or takes a used one.
func (g *Group[Req, Res]) newItem(req Req, held string) *item[Req, Res] {
	it, ok := g.items.Get().(*item[Req, Res])
	if !ok {
		it = &item[Req, Res]{wake: make(chan signal, 2)}
	}
	it.req, it.held = req, held
	if g.size != nil {
		it.bytes = g.size(req)
	}
	return it
}

// recycle keeps an item that no other goroutine has any more.
func (g *Group[Req, Res]) recycle(it *item[Req, Res]) {
	select {
	case <-it.wake:
	default:
	}
	*it = item[Req, Res]{wake: it.wake, timer: it.timer}
	g.items.Put(it)
}

// bring puts an item at the end of its line.
func (g *Group[Req, Res]) bring(it *item[Req, Res], key string, wait time.Duration) error {
	it.key = key
	g.mu.Lock()
	l := g.lines[key]
	if l == nil {
		if l, g.spare = g.spare, nil; l == nil {
			l = new(line[Req, Res])
		}
		if l.open = g.options.linger == 0; !l.open {
			l.opens = time.Now().Add(g.options.linger)
		}
		g.lines[key] = l
	}
	var beaten []*item[Req, Res]
	switch most := g.locks.MaxWaiters; {
	case wait == 0 && l.n > 0:
		g.mu.Unlock()
		return fmt.Errorf("%w: %q", core.ErrHeld, key)
	case g.options.latest:
		beaten = g.supersede(l, it)
	case most > 0 && l.n >= most:
		g.mu.Unlock()
		return fmt.Errorf("%w: %q has %d: %w", core.ErrQueueFull, key, most, core.ErrHeld)
	}
	l.push(it)
	if !l.open && g.full(l) && l.first != it {
		l.first.look()
	}
	g.appoint(l, it)
	g.mu.Unlock()
	for _, old := range beaten {
		old.settle(old.res, fmt.Errorf("%w: %q", core.ErrSuperseded, key))
	}
	return nil
}

// supersede takes the older items out of a line. It returns the items without a result.
func (g *Group[Req, Res]) supersede(l *line[Req, Res], by *item[Req, Res]) (beaten []*item[Req, Res]) {
	for old := l.first; old != nil; old = l.first {
		l.remove(old)
		if old.state = taken; old.leave != nil {
			old.leave(errNewer)
		}
		if !g.options.share {
			beaten = append(beaten, old)
			continue
		}
		old.state = superseded
		by.beaten = append(append(by.beaten, old.beaten...), old)
		old.beaten = nil
	}
	return beaten
}

// full reports whether no further item fits into the first batch of a line.
func (g *Group[Req, Res]) full(l *line[Req, Res]) bool {
	return l.n >= g.options.most || g.options.bytes > 0 && l.bytes >= g.options.bytes
}

// appoint has the first callers of a line ask for the lock. self is the caller that runs this, or nil.
// Called with the mutex held.
func (g *Group[Req, Res]) appoint(l *line[Req, Res], self *item[Req, Res]) {
	first := l.first
	if first == nil {
		return
	}
	// The second is woken first: the scheduler runs the goroutine first that is woken last.
	if second := first.next; second != nil && l.open && contenders > 1 && !second.asks {
		if second.asks = true; second != self {
			second.look()
		}
	}
	if !first.asks {
		if first.asks = true; first != self {
			first.look()
		}
	}
}

// what is the next step of a caller.
type what int8

const (
	rest what = iota // until it is woken, or a time has come
	ask              // for the lock
)

// next returns the next step of an item's caller, and until when it rests; zero: no limit.
func (g *Group[Req, Res]) next(it *item[Req, Res]) (do what, until time.Time) {
	g.mu.Lock()
	defer g.mu.Unlock()
	switch l := g.lines[it.key]; {
	case it.state != waiting:
		return rest, time.Time{}
	case !it.asks:
		return rest, it.deadline
	case l.open:
		return ask, until
	case g.full(l) || !time.Now().Before(l.opens):
		l.open = true
		g.appoint(l, it)
		return ask, until
	case it.deadline.IsZero() || l.opens.Before(it.deadline):
		return rest, l.opens
	}
	return rest, it.deadline
}

// asks returns the context under which the caller of an item asks for the lock; nil if another caller
// has taken the item. The function stop ends it. It is nil for an item that is alone in its line: a
// batch of one then costs what a lock costs.
func (g *Group[Req, Res]) asks(ctx context.Context, it *item[Req, Res]) (asks context.Context, stop context.CancelCauseFunc) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if it.state != waiting {
		return nil, nil
	}
	if it.alone = g.lines[it.key].n == 1 && !g.options.latest; it.alone {
		return ctx, nil
	}
	asks, it.leave = context.WithCancelCause(ctx)
	return asks, it.leave
}

// quit takes an item out, and reports whether it was still waiting.
func (g *Group[Req, Res]) quit(it *item[Req, Res]) bool {
	g.mu.Lock()
	was := it.state == waiting
	if was {
		g.remove(g.lines[it.key], it)
	}
	g.mu.Unlock()
	if was {
		it.beat(it.res, nil)
	}
	return was
}

// isSuperseded reports whether the item waits for the outcome of a newer item.
func (g *Group[Req, Res]) isSuperseded(it *item[Req, Res]) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return it.state == superseded
}

// remove takes an item out of its line. Called with the mutex held.
func (g *Group[Req, Res]) remove(l *line[Req, Res], it *item[Req, Res]) {
	l.remove(it)
	it.state = taken
	if l.n == 0 {
		g.forget(it.key, l)
	} else {
		g.appoint(l, nil)
	}
}

// clear empties a line, and returns its items except self. Called with the mutex held.
func (g *Group[Req, Res]) clear(l *line[Req, Res], self *item[Req, Res]) (others []*item[Req, Res]) {
	for it := l.first; it != nil; it = l.first {
		l.remove(it)
		if it.state = taken; it == self {
			continue
		}
		if it.leave != nil {
			it.leave(errTaken)
		}
		others = append(others, it)
	}
	g.forget(self.key, l)
	return others
}

// forget gives up an empty line. Called with the mutex held.
func (g *Group[Req, Res]) forget(key string, l *line[Req, Res]) {
	delete(g.lines, key)
	*l = line[Req, Res]{}
	g.spare = l
}

// push puts an item at the end.
func (l *line[Req, Res]) push(it *item[Req, Res]) {
	if it.prev = l.last; l.last == nil {
		l.first = it
	} else {
		l.last.next = it
	}
	l.last = it
	l.n++
	l.bytes += it.bytes
}

// remove takes an item out.
func (l *line[Req, Res]) remove(it *item[Req, Res]) {
	if it.prev == nil {
		l.first = it.next
	} else {
		it.prev.next = it.next
	}
	if it.next == nil {
		l.last = it.prev
	} else {
		it.next.prev = it.prev
	}
	it.prev, it.next = nil, nil
	l.n--
	l.bytes -= it.bytes
}

// look has the caller look at its item.
func (it *item[Req, Res]) look() {
	if len(it.wake) == 0 {
		it.wake <- look
	}
}

// expired reports whether the wait of the caller is over.
func (it *item[Req, Res]) expired() bool {
	return !it.deadline.IsZero() && !time.Now().Before(it.deadline)
}

// settle gives the caller of an item an outcome, and the callers of the items that it superseded.
func (it *item[Req, Res]) settle(res Res, err error) {
	it.beat(res, err)
	it.res, it.err = res, err
	it.wake <- finished
}

// beat gives the callers of superseded items the outcome of the newer one. The error nil with an
// item that was not carried out leaves them without a result.
func (it *item[Req, Res]) beat(res Res, err error) {
	for _, old := range it.beaten {
		out := fmt.Errorf("%w: %q", core.ErrSuperseded, it.key)
		if err != nil {
			out = fmt.Errorf("%w: %w", out, err)
		}
		old.res, old.err = res, out
		old.wake <- finished
	}
	it.beaten = nil
}
