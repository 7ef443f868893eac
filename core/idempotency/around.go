package idempotency

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/interlock-go/interlock/core"
)

// leaseAround is the lease of a guard that runs around the engine, as a separate
// middleware. The handler's context does not derive from the lease's, which ends with
// the client too, so the engine tells the handler of a loss itself.
type leaseAround struct {
	lease  *core.Lease
	cancel context.CancelCauseFunc // of the handler's context
	detach func() bool             // of the function that is attached to the lease's context

	mu    sync.Mutex
	timer *time.Timer // after the client has gone
	done  bool
}

// watchAround ends the handler's context with cancel when the lease around the engine is
// lost, or superseded, until unwatch.
func watchAround(lease *core.Lease, cancel context.CancelCauseFunc) *leaseAround {
	l := &leaseAround{lease: lease, cancel: cancel}
	l.detach = context.AfterFunc(lease.Context(), l.look)
	return l
}

func (l *leaseAround) unwatch() {
	l.detach()
	l.mu.Lock()
	defer l.mu.Unlock()
	l.done = true
	if l.timer != nil {
		l.timer.Stop()
	}
}

// look is called when the lease's context has ended. If that was the client's doing,
// the lease goes on, and only its deadline says when to look again.
func (l *leaseAround) look() {
	if cause := l.lost(); cause != nil {
		l.cancel(cause)
		return
	}
	if errors.Is(context.Cause(l.lease.Context()), core.ErrSuperseded) {
		l.cancel(core.ErrSuperseded) // it has to stop; the lease goes on until it does
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.done || errors.Is(l.lease.Err(), core.ErrReleased) {
		return
	}
	l.timer = time.AfterFunc(max(time.Until(l.lease.Deadline()), 0)+time.Millisecond, l.look)
}

// lost returns why the lease cannot be trusted, or nil. A handler that released it
// early did so by intent.
func (l *leaseAround) lost() error {
	if l == nil {
		return nil
	}
	for _, err := range []error{l.lease.Err(), context.Cause(l.lease.Context())} {
		if errors.Is(err, core.ErrLost) || errors.Is(err, core.ErrMaxHold) {
			return err
		}
	}
	return nil
}
