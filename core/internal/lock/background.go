package lock

import (
	"context"
	"sync"
	"sync/atomic"
)

// background counts what a Table has under way: goroutines, and requests to the
// store. Unlike with sync.WaitGroup, one may begin while another goroutine waits.
type background struct {
	mu   sync.Mutex
	n    int
	idle chan struct{} // made by the first that waits
}

// Go runs f on a goroutine of its own.
func (b *background) Go(f func()) {
	b.begin()
	go func() {
		defer b.done()
		f()
	}()
}

func (b *background) begin() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.n++
}

func (b *background) done() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.n--
	if b.n == 0 && b.idle != nil {
		close(b.idle)
		b.idle = nil
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
