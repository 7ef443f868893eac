package idempotency

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/interlock-go/interlock/core"
)

// outerLease is the lease of a guard that runs around the engine, as a middleware of
// its own. The handler's context does not derive from the lease's, which ends with
// the client too, so the engine tells the handler of a loss itself.
type outerLease struct {
	lease  *core.Lease
	cancel context.CancelCauseFunc // of the handler's context
	detach func() bool             // of the function that is attached to the lease's context

	mu    sync.Mutex
	timer *time.Timer // after the client has gone
	done  bool
}

// watchOuter ends the handler's context with cancel when the lease around the engine is
// lost, until unwatch.
func watchOuter(lease *core.Lease, cancel context.CancelCauseFunc) *outerLease {
	o := &outerLease{lease: lease, cancel: cancel}
	o.detach = context.AfterFunc(lease.Context(), o.look)
	return o
}

func (o *outerLease) unwatch() {
	o.detach()
	o.mu.Lock()
	defer o.mu.Unlock()
	o.done = true
	if o.timer != nil {
		o.timer.Stop()
	}
}

// look is called when the lease's context has ended. If that was the client's doing,
// the lease goes on, and only its deadline says when to look again.
func (o *outerLease) look() {
	if cause := o.lost(); cause != nil {
		o.cancel(cause)
		return
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.done || errors.Is(o.lease.Err(), core.ErrReleased) {
		return
	}
	o.timer = time.AfterFunc(max(time.Until(o.lease.Deadline()), 0)+time.Millisecond, o.look)
}

// lost returns why the lease cannot be trusted, or nil. A handler that released it
// early did so by intent.
func (o *outerLease) lost() error {
	for _, err := range []error{o.lease.Err(), context.Cause(o.lease.Context())} {
		if errors.Is(err, core.ErrLost) || errors.Is(err, core.ErrMaxHold) {
			return err
		}
	}
	return nil
}
