package gather

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/internal/lent"
)

// Section carries out the items of a batch, which has at least one, under the lock of their key. It
// returns one result for each item, in their order, or an error for all, or [Errors]. [Each] and [InTx] make a Section
// of a function for one item. The package comment describes ctx. The Section must not keep the slice
// batch after it has returned. It runs on the goroutine of a caller.
type Section[Req, Res any] func(ctx context.Context, key string, batch []Req) ([]Res, error)

// Group gathers the requests for each key. Make it with [New]; the zero value is not usable. Use one
// Group for a section, a locker and a process. It is safe for concurrent use, and needs no end.
type Group[Req, Res any] struct {
	section Section[Req, Res]
	locks   *lent.Locks
	options settings
	size    func(Req) int

	items, batches sync.Pool

	mu    sync.Mutex
	lines map[string]*line[Req, Res] // with waiting items
	spare *line[Req, Res]            // the next line, or nil
}

// New makes a [Group]. It panics with an error that matches [core.ErrConfig] for a nil locker or
// section and for an option that cannot work, as core.Serialize does.
func New[Req, Res any](locker *core.Locker, section Section[Req, Res], opts ...Option) *Group[Req, Res] {
	own, rest := split(opts)
	locks, err := lent.Prepare(locker, rest)
	g := &Group[Req, Res]{section: section, locks: locks, options: own, lines: map[string]*line[Req, Res]{}}
	if own.size != nil {
		var fits bool
		if g.size, fits = own.size.(func(Req) int); !fits {
			own.fail("MostBytes: the function is a %T; the group needs a %T", own.size, g.size)
		}
	}
	switch {
	case err != nil:
	case own.invalid != nil:
		err = own.invalid
	case section == nil:
		err = fmt.Errorf("%w: gather.New with a nil section", core.ErrConfig)
	case own.linger > 0 && locks.Wait >= 0 && own.linger >= locks.Wait:
		err = fmt.Errorf("%w: gather.Linger(%v) with core.Wait(%v): each item would end before it is taken", core.ErrConfig, own.linger, locks.Wait)
	}
	if err != nil {
		panic(err)
	}
	return g
}

// Do brings an item, and returns its result when a section has carried it out. The error is the
// section's, or matches an error of this list:
//
//   - [ErrUnknown]: the item may have been carried out.
//   - [core.ErrSuperseded]: a newer item came ([Latest]).
//   - [core.ErrHeldByCaller]: the caller holds the lock of the key, or a caller of it does: a section
//     that calls Do for its own key.
//   - an error of core.Locker.Lock, or [context.Cause] of ctx: the item was not carried out.
//
// If the section panics, the panic goes on in the caller that leads.
func (g *Group[Req, Res]) Do(ctx context.Context, key string, req Req) (res Res, err error) {
	if err := g.locks.Check(key); err != nil {
		return res, err
	}
	wait, held := g.locks.Wait, ""
	if nested, callers := g.locks.Holds(ctx); callers {
		var leave func() bool
		ctx, held, leave = g.locks.Join(ctx, key)
		defer leave()
		if nested && wait != 0 && (wait < 0 || g.locks.Nested < wait) {
			wait = g.locks.Nested
		}
	}
	if ctx.Err() != nil {
		return res, ended(ctx, key)
	}
	it := g.newItem(req, held)
	if wait >= 0 || g.locks.Observed {
		if it.since = time.Now(); wait >= 0 {
			it.deadline = it.since.Add(wait)
		}
	}
	if err := g.bring(it, key, wait); err != nil {
		g.recycle(it)
		return res, err
	}
	clean := false
	defer func() {
		if !clean { // a panic of the section, or of an observer
			g.quit(it)
		}
	}()
	err = g.await(ctx, it)
	clean = true
	if err != nil {
		return res, err
	}
	res, err = it.res, it.err
	g.recycle(it)
	return res, err
}

// await returns nil when the item has its outcome, or why its caller leaves without.
func (g *Group[Req, Res]) await(ctx context.Context, it *item[Req, Res]) error {
	for !it.over {
		do, until := g.next(it)
		if do == ask {
			if err := g.lead(ctx, it); err != nil {
				return err
			}
			continue
		}
		if err := g.sleep(ctx, it, until); err != nil {
			return err
		}
	}
	return nil
}

// sleep waits for a signal, for a time unless that is zero, and for the end of the context.
func (g *Group[Req, Res]) sleep(ctx context.Context, it *item[Req, Res], until time.Time) error {
	var alarm <-chan time.Time
	if !until.IsZero() {
		if it.timer == nil {
			it.timer = time.NewTimer(time.Until(until))
		} else {
			it.timer.Reset(time.Until(until))
		}
		defer it.timer.Stop()
		alarm = it.timer.C
	}
	select {
	case s := <-it.wake:
		it.over = s == finished
	case <-alarm:
		if it.expired() && g.quit(it) {
			return fmt.Errorf("%w: %q", core.ErrHeld, it.key)
		}
	case <-ctx.Done():
		if g.quit(it) {
			return ended(ctx, it.key)
		}
		return g.left(ctx, it)
	}
	return nil
}

// left is for a caller that leaves after its item was taken.
func (g *Group[Req, Res]) left(ctx context.Context, it *item[Req, Res]) error {
	for {
		select {
		case s := <-it.wake: // the outcome is there, and counts
			if it.over = s == finished; it.over {
				return nil
			}
			continue
		default:
		}
		if g.isSuperseded(it) {
			return fmt.Errorf("%w: %q: %w", core.ErrSuperseded, it.key, context.Cause(ctx))
		}
		return fmt.Errorf("%w: %q: %w", ErrUnknown, it.key, context.Cause(ctx))
	}
}

// lead asks for the lock, and runs the section of a batch.
func (g *Group[Req, Res]) lead(ctx context.Context, it *item[Req, Res]) error {
	asks, stop := g.asks(ctx, it)
	if asks == nil {
		return nil
	}
	wait := time.Duration(-1)
	if !it.deadline.IsZero() {
		wait = max(time.Until(it.deadline), 0)
	}
	held, err := g.locks.Lock(asks, it.key, wait)
	if stop != nil {
		stop(nil)
	}
	if err != nil {
		return g.refused(ctx, it, err)
	}
	lease, _ := held.(*core.Lease)
	b := g.take(it)
	if len(b.items) == 0 { // another caller has taken them, or is to take them
		_ = lease.Release(ctx)
		g.batches.Put(b)
		return nil
	}
	g.run(ctx, lease, it, b)
	return nil
}

// refused is for a caller that did not get the lock. Where that is not the caller's affair alone, all
// items that wait for the key get the error.
func (g *Group[Req, Res]) refused(ctx context.Context, it *item[Req, Res], err error) error {
	ofAll := ctx.Err() == nil && !it.expired() &&
		(errors.Is(err, core.ErrUnavailable) || errors.Is(err, core.ErrNotReplicated) || errors.Is(err, core.ErrKeyOccupied) || errors.Is(err, core.ErrClosed))
	g.mu.Lock()
	if it.state != waiting {
		g.mu.Unlock()
		return nil // it was taken, or a newer item came
	}
	l := g.lines[it.key]
	it.alone = false
	var others []*item[Req, Res]
	if ofAll && !l.first.alone { // else that caller gets an answer as well
		others = g.clear(l, it)
	} else {
		g.remove(l, it)
	}
	g.mu.Unlock()
	for _, other := range others {
		other.settle(other.res, err)
	}
	it.beat(it.res, nil)
	return err
}

// ended is the error of a caller that leaves before its item was taken.
func ended(ctx context.Context, key string) error {
	return fmt.Errorf("interlock: waiting for %q: %w", key, context.Cause(ctx))
}
