package lock

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
)

// Close ends all waits with [ErrClosed], and waits until no hold is left or ctx has
// ended. Then it ends the holds that are left, with cause ErrClosed. Their keys
// stay: their handlers may be at work, and the TTL is what frees them. Close may be
// called again, also at the same time.
func (t *Table) Close(ctx context.Context) error {
	t.life.closed.Store(true)
	// A caller that saw the Table open has joined under the shard's mutex by the time
	// we get that mutex; a later caller sees it closed.
	t.each((*lock).close)
	var err error
	for t.life.holds.Load() > 0 && err == nil {
		select {
		case <-t.life.empty.next(&t.life.holds):
		case <-ctx.Done():
			err = fmt.Errorf("interlock: closing with %d locks held: %w", t.life.holds.Load(), context.Cause(ctx))
		}
	}
	now := t.Clock.Now()
	t.life.over.Store(true)
	t.each(func(l *lock, fx *effects) {
		if l.own != nil {
			l.own.lose(Closed, ErrClosed, now, fx)
		}
		for _, own := range slices.Clone(l.places.held()) {
			own.lose(Closed, ErrClosed, now, fx)
		}
	})
	t.calls.end()
	t.watchdog.stop()
	t.reaper.stop()
	t.registry.stop()
	t.life.work.wait(ctx) // else requests on their way end by their own deadlines
	if err == nil {
		t.registry.withdraw(ctx) // with holds left, the entry names their process
	}
	return err
}

// each is an event of all locks.
func (t *Table) each(event func(*lock, *effects)) {
	for i := range t.keys.shards {
		sh := &t.keys.shards[i]
		sh.mu.Lock()
		all := slices.Collect(maps.Values(sh.locks))
		sh.mu.Unlock()
		for _, l := range all {
			sh.event(l, func(fx *effects) { event(l, fx) })
		}
	}
}

// broadcast tells every Close that waits when no hold is left.
type broadcast struct {
	mu sync.Mutex
	ch chan struct{} // nil while none waits
}

// next returns a channel that is closed when holds is zero, or has become zero.
func (b *broadcast) next(holds *atomic.Int64) <-chan struct{} {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.ch == nil {
		b.ch = make(chan struct{})
	}
	ch := b.ch
	if holds.Load() <= 0 { // it may have told before there was a channel
		close(ch)
		b.ch = nil
	}
	return ch
}

func (b *broadcast) tell() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.ch != nil {
		close(b.ch)
		b.ch = nil
	}
}

// wait returns when none is left or ctx has ended.
func (b *background) wait(ctx context.Context) {
	idle := b.waiting()
	if idle == nil {
		return
	}
	select {
	case <-idle:
	case <-ctx.Done():
	}
}

// waiting returns a channel that is closed when none is left; nil if none is.
func (b *background) waiting() <-chan struct{} {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.n == 0 {
		return nil
	}
	if b.idle == nil {
		b.idle = make(chan struct{})
	}
	return b.idle
}
