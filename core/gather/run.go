package gather

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/internal/lent"
	"github.com/interlock-go/interlock/core/observe"
)

// batch has the items of a section.
type batch[Req, Res any] struct {
	items []*item[Req, Res]
	reqs  []Req
	held  []string // the locks of their callers
	left  int      // items of the key that wait for the next batch
}

// maxSpareBatch is the length of the longest batch with slices that are used again.
const maxSpareBatch = 4096

// take takes the items of the next batch of a key. It takes none if the first caller asks alone: that
// caller was overtaken, and would wait for the lock of the batch that has its item.
func (g *Group[Req, Res]) take(self *item[Req, Res]) *batch[Req, Res] {
	b, ok := g.batches.Get().(*batch[Req, Res])
	if !ok {
		b = new(batch[Req, Res])
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	self.leave, self.alone = nil, false
	l := g.lines[self.key]
	if l == nil {
		return b
	}
	if l.first.alone {
		self.asks = false // until it is appointed again
		return b
	}
	bytes := 0
	for it := l.first; it != nil && len(b.items) < g.options.most; it = l.first {
		if bytes += it.bytes; g.options.bytes > 0 && bytes > g.options.bytes && len(b.items) > 0 {
			break
		}
		l.remove(it)
		if it.state = taken; it.leave != nil {
			it.leave(errTaken)
		}
		b.items, b.reqs = append(b.items, it), append(b.reqs, it.req)
		if it.held != "" {
			b.held = append(b.held, it.held)
		}
	}
	if b.left = l.n; l.n == 0 {
		g.forget(self.key, l)
	} else {
		g.appoint(l, nil)
	}
	return b
}

// run runs the section of a batch under a lease, and gives each caller its outcome. The callers are
// woken before the release: they do not wait for the store.
func (g *Group[Req, Res]) run(ctx context.Context, lease *core.Lease, self *item[Req, Res], b *batch[Req, Res]) {
	g.locks.Detach(lease, g.base(ctx, b))
	var begin time.Time
	if g.locks.Observed {
		begin = time.Now()
	}
	var results []Res
	var err error
	returned := false
	defer func() {
		kept, keeps := err.(*lent.Kept) //nolint:errorlint // it is never wrapped
		if keeps {
			err = kept.Err
		}
		lost := lease.Err()
		if errors.Is(lost, core.ErrReleased) || errors.Is(lost, core.ErrHandedOver) {
			lost = nil // the section did that on purpose
		}
		o := outcomes[Res]{self.key, results, err, nil, len(b.items)}
		o.decide(returned, lost)
		if g.locks.Observed {
			g.locks.Gathered(lease, observe.Gathered{
				Items: len(b.items), Queued: begin.Sub(b.items[0].since), Took: time.Since(begin), Left: b.left, Err: o.err,
			})
		}
		g.give(b, self, &o)
		if keeps {
			keep(ctx, lease, kept)
		} else {
			_ = lease.Release(ctx) // the observer gets its error
		}
		if returned && lost == nil && cap(b.items) <= maxSpareBatch {
			clear(b.items)
			clear(b.reqs)
			b.items, b.reqs, b.held = b.items[:0], b.reqs[:0], nil
			g.batches.Put(b)
		}
	}()
	results, err = g.section(lease.Context(), self.key, b.reqs)
	returned = true
}

// keep leaves the release to the section.
func keep(ctx context.Context, lease *core.Lease, kept *lent.Kept) {
	ctx = context.WithoutCancel(ctx)
	kept.Take(func() { _ = lease.Release(ctx) })
}

// base returns the parent of the context of a section.
func (g *Group[Req, Res]) base(leader context.Context, b *batch[Req, Res]) context.Context {
	base := context.Background()
	if f := g.options.values; f != nil {
		base = context.WithoutCancel(f(leader))
	}
	if b.held == nil {
		return base
	}
	return g.locks.Base(base, b.held)
}

// give gives each caller its outcome.
func (g *Group[Req, Res]) give(b *batch[Req, Res], self *item[Req, Res], o *outcomes[Res]) {
	for i, it := range b.items {
		res, err := o.of(i)
		if it == self {
			it.beat(res, err)
			it.res, it.err, it.over = res, err, true
			continue
		}
		it.settle(res, err)
	}
}

// outcomes are the results of a section.
type outcomes[Res any] struct {
	key     string
	results []Res
	err     error  // of all items, if each is nil
	each    Errors // of each item
	n       int
}

// decide finds the errors after the end of a section.
func (o *outcomes[Res]) decide(returned bool, lost error) {
	if o.err != nil {
		o.each = eachOf(o.err)
	}
	switch {
	case !returned:
		o.results, o.err = nil, fmt.Errorf("%w: %q: %w", ErrUnknown, o.key, ErrPanicked)
	case o.each != nil && len(o.each) != o.n:
		o.results, o.err = nil, fmt.Errorf("%w: %q: %w: Errors has %d, and the batch %d: %w", ErrUnknown, o.key, ErrResults, len(o.each), o.n, o.err)
		o.each = nil
	case len(o.results) != o.n && o.needsResults():
		o.results, o.err, o.each = nil, fmt.Errorf("%w: %q: %w: %d results for %d items", ErrUnknown, o.key, ErrResults, len(o.results), o.n), nil
	}
	if lost == nil {
		return
	}
	lost = fmt.Errorf("%w: %w", ErrUnknown, lost)
	for i, err := range o.each {
		if !errors.Is(err, errNotBegun) {
			o.each[i] = errors.Join(err, lost)
		}
	}
	o.err = errors.Join(o.err, lost)
}

// eachOf returns the errors of an error by item, nil if it has none.
func eachOf(err error) (each Errors) {
	errors.As(err, &each)
	return each
}

// needsResults reports whether there are items without an error.
func (o *outcomes[Res]) needsResults() bool {
	if o.each == nil {
		return o.err == nil
	}
	for _, err := range o.each {
		if err == nil {
			return true
		}
	}
	return false
}

// of returns the result and the error of an item.
func (o *outcomes[Res]) of(i int) (res Res, err error) {
	if err = o.err; o.each != nil {
		err = o.each[i]
	}
	if len(o.results) == o.n {
		res = o.results[i]
	}
	return res, err
}
