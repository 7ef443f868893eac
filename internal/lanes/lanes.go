// Package lanes has the requests of an adapter for a consensus system share transactions: the requests that wait at the same
// time.
package lanes

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/interlock-go/interlock/core/driver"
)

// longest bounds a transaction if all its callers wait without a bound.
const longest = 10 * time.Second

// Request is the part of a request that all adapters have. They embed it.
type Request struct {
	ctx  context.Context
	done chan struct{}
}

// Begin makes a request of a caller that leaves when ctx ends.
func Begin(ctx context.Context) Request { return Request{ctx, make(chan struct{})} }

// End says that the request has its outcome.
func (r *Request) End() { close(r.done) }

// Done is closed by End.
func (r *Request) Done() <-chan struct{} { return r.done }

func (r *Request) part() *Request { return r }

// Lanes sends requests. The fields are set before the first request, and not changed.
type Lanes[R interface {
	comparable
	part() *Request
}] struct {
	// Under is the maximum number of concurrent transactions: a request that comes while there are as many waits, and
	// shares the next one.
	Under int
	// Next splits waiting requests, if there are any, into the requests that can share a transaction, and the others. It is
	// called from one goroutine at a time.
	Next func(waiting []R) (batch, left []R)
	// Send sends a batch, and ends each of its requests. ctx ends when the last of the callers has left, or after
	// 10 s. If Send calls more, the next batch does not wait for its return.
	Send func(ctx context.Context, batch []R, more func())

	mu      sync.Mutex
	waiting []R
	busy    int // lanes that send
}

// Do sends a request, and waits for its outcome. If the caller leaves before, the error says whether the request is still
// carried out: an error that matches [driver.ErrNotReady] says that it was not sent.
func (l *Lanes[R]) Do(r R) error {
	own := r.part()
	if own.ctx.Err() != nil {
		return notSent(own.ctx)
	}
	l.mu.Lock()
	l.waiting = append(l.waiting, r)
	if l.busy < l.Under {
		l.busy++
		go l.serve()
	}
	l.mu.Unlock()
	select {
	case <-own.done:
		return nil
	case <-own.ctx.Done():
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if i := slices.Index(l.waiting, r); i >= 0 {
		l.waiting = slices.Delete(l.waiting, i, i+1)
		return notSent(own.ctx)
	}
	return context.Cause(own.ctx)
}

func notSent(ctx context.Context) error {
	return fmt.Errorf("%w: %w", driver.ErrNotReady, context.Cause(ctx))
}

// serve sends waiting requests, until none waits. Callers that are ready to run go first, among them
// those with an answer to the last transaction: a request that comes a moment later would
// wait for the next transaction, or need a separate one.
func (l *Lanes[R]) serve() {
	for again := true; again; {
		runtime.Gosched()
		runtime.Gosched() // after one, another processor can go on here before any of the callers
		var batch []R
		l.mu.Lock()
		batch, l.waiting = l.Next(l.waiting)
		if len(batch) == 0 {
			l.busy--
			l.mu.Unlock()
			return
		}
		l.mu.Unlock()
		var next sync.Once
		again = false
		l.send(batch, func() { next.Do(func() { go l.serve() }) })
		next.Do(func() { again = true })
	}
}

// send sends a batch. That ends when the last of its callers has left.
func (l *Lanes[R]) send(batch []R, more func()) {
	ctx, cancel := context.WithTimeout(context.Background(), longest)
	defer cancel()
	var callers atomic.Int64
	callers.Store(int64(len(batch)))
	for _, r := range batch {
		defer context.AfterFunc(r.part().ctx, func() {
			if callers.Add(-1) == 0 {
				cancel()
			}
		})()
	}
	l.Send(ctx, batch, more)
}
