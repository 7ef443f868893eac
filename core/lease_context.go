package core

import (
	"context"
	"time"

	"github.com/interlock-go/interlock/core/internal/carrier"
)

// Context returns the context for work under the lock. It derives from the context
// that was given to [Locker.Lock], and carries the lease ([LeaseFromContext]). It
// ends when the lease can no longer be trusted, with cause [ErrLost], [ErrMaxHold]
// or, after [Locker.Close], [ErrClosed] (see [context.Cause]). It ends with cause
// [ErrSuperseded], while the lease stays valid, when a newer caller waits ([Newest]), and with
// [ErrReleased] when the last hold of its locks is released ([ErrHandedOver] where the lock was
// handed over before). The context of a
// re-entry ends with the lease that holds the lock.
func (lease *Lease) Context() context.Context {
	if lease == nil {
		return context.Background()
	}
	return (*leaseContext)(lease)
}

// LeaseFromContext returns the lease of ctx, the innermost if there are several. It returns
// nil outside of a lock, and in a handler that a guard let through without a lock
// ([FailOpen], a route that did not match, the Skipper of an adapter). The methods of a nil
// lease do not panic; see [Lease].
//
// In a handler of gin, pass c.Request.Context(). LeaseFromContext finds the lease in a
// *gin.Context too, and so do [Check], [Commit] and [Fences]. But that context does not end
// with the lease, and [Locker.Lock] refuses it.
func LeaseFromContext(ctx context.Context) *Lease {
	l, _ := carrier.Value(ctx, leaseKey{}).(*Lease)
	return l
}

type leaseKey struct{}

// leaseContext is the Lease as a context.Context, without a further allocation. Once a
// caller asks for the channel there is a context of the standard library inside, so
// that contexts derived from this one attach to it without a goroutine and
// context.Cause finds the cause.
type leaseContext Lease

func (c *leaseContext) Deadline() (time.Time, bool) { return c.parent.Deadline() }

func (c *leaseContext) Done() <-chan struct{} { return (*Lease)(c).standard().Done() }

func (c *leaseContext) Err() error {
	if std := c.std.Load(); std != nil {
		return std.Err()
	}
	l := (*Lease)(c)
	l.mu.Lock()
	ended := l.ended
	l.mu.Unlock()
	if ended == notEnded {
		return c.parent.Err()
	}
	return l.standard().Err() // made only now, already ended with the cause
}

func (c *leaseContext) Value(key any) any {
	if _, ok := key.(leaseKey); ok {
		return (*Lease)(c)
	}
	if std := c.std.Load(); std != nil {
		return std.Value(key)
	}
	return c.parent.Value(key)
}

func (c *leaseContext) String() string { return "interlock lease of " + (*Lease)(c).Key() }

// standard returns the standard library's context inside.
func (lease *Lease) standard() context.Context {
	if std := lease.std.Load(); std != nil {
		return std.Context
	}
	lease.mu.Lock()
	defer lease.mu.Unlock()
	if std := lease.std.Load(); std != nil {
		return std.Context
	}
	std := &standard{Context: lease.parent}
	if lease.taking || lease.left > 0 || lease.ended != notEnded {
		std.Context, std.cancel = context.WithCancelCause(lease.parent)
	} // else nothing was taken, only re-entered: it ends with the outer lease's
	if lease.ended != notEnded {
		std.cancel(causes[lease.ended])
	}
	lease.std.Store(std)
	return std.Context
}

// end ends the context with a cause; the first cause stays.
func (lease *Lease) end(cause error) {
	lease.mu.Lock()
	if lease.ended != notEnded {
		lease.mu.Unlock()
		return
	}
	lease.ended = endedByLoss
	for how, err := range causes {
		if err == cause { //nolint:errorlint // they are never wrapped here
			lease.ended = ending(how) //nolint:gosec // there are seven
		}
	}
	std := lease.std.Load()
	lease.mu.Unlock()
	if std != nil && std.cancel != nil {
		std.cancel(cause)
	}
}

// ending says how the context of a lease has ended. It is a number because there is
// one in each lease.
type ending int8

const (
	notEnded ending = iota
	endedByRelease
	endedByLoss
	endedByMaxHold
	endedByClose
	endedBySuperseded
	endedByHandOver
)

// causes are the causes of the context by its ending.
var causes = [...]error{
	endedByRelease: ErrReleased, endedByLoss: ErrLost, endedByMaxHold: ErrMaxHold, endedByClose: ErrClosed,
	endedBySuperseded: ErrSuperseded, endedByHandOver: ErrHandedOver,
}

// standard is a context of the standard library, and what ends it, if it is the
// lease's own.
type standard struct {
	context.Context
	cancel context.CancelCauseFunc
}

// holder is the Lease as the [lock.Holder] of the locks that it took.
type holder Lease

// Over implements [lock.Holder].
func (h *holder) Over(cause error) {
	l := (*Lease)(h)
	l.mu.Lock()
	l.left--
	if cause == nil && l.left == 0 {
		cause = ErrReleased
	}
	l.mu.Unlock()
	if cause != nil {
		l.end(cause)
	}
}
