// Package inflight is the meeting of a request with its caller: the caller may leave before the request has its
// outcome, and the outcome must reach either the caller or those who deal with it in the caller's place.
package inflight

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/interlock-go/interlock/core/driver"
)

// Caller is the caller of a request, which waits at first. Of [Caller.Serve] and [Caller.Leave] one succeeds, once. It is
// safe for concurrent use.
type Caller struct{ state atomic.Int32 }

const (
	waits int32 = iota
	served
	left
)

// Serve reports whether the caller still waits. If so, the outcome is the caller's, and has to be sent to it.
func (c *Caller) Serve() bool { return c.state.CompareAndSwap(waits, served) }

// Leave has the caller leave. It reports false if the request has its outcome already.
func (c *Caller) Leave() bool { return c.state.CompareAndSwap(waits, left) }

// Waits reports whether the caller waits.
func (c *Caller) Waits() bool { return c.state.Load() == waits }

// Left reports whether the caller has left.
func (c *Caller) Left() bool { return c.state.Load() == left }

// Wait waits for the outcome in done, but not longer than ctx or the deadline allow, unless that is zero. done has room
// for the outcome, which is sent after [Caller.Serve]. It reports false if the caller has left.
func Wait[T any](ctx context.Context, deadline time.Time, c *Caller, done <-chan T) (outcome T, ok bool) {
	var alarm <-chan time.Time
	if !deadline.IsZero() {
		timer := time.NewTimer(time.Until(deadline))
		defer timer.Stop()
		alarm = timer.C
	}
	select {
	case outcome = <-done:
		return outcome, true
	case <-alarm:
	case <-ctx.Done():
	}
	if c.Leave() {
		return outcome, false
	}
	return <-done, true // it came just now
}

// Pending is the error for a caller that has left: the outcome is not known yet.
func Pending(ctx context.Context) error {
	if ctx.Err() != nil {
		return fmt.Errorf("%w: %w", driver.ErrPending, context.Cause(ctx))
	}
	return driver.ErrPending
}
