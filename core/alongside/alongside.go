package alongside

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/interlock-go/interlock/core"
)

// Lock is a lock of another library, for one section of code: make a new one for each
// call of [Do]. All fields are needed. Do never calls two of the functions at the same
// time.
//
// Renew and Release return an error that matches [core.ErrLost] where the library says
// that the lock is not held any more. Any other error means that it is not known: the lock
// is trusted for the rest of its lease.
type Lock struct {
	// Lease is how long the lock lasts after each Renew, if Release does not end it: at
	// least 10 ms. Other libraries call it the expiry or the TTL.
	Lease time.Duration
	// Acquire takes the lock. It waits, and gives up, as the old release does.
	Acquire func(ctx context.Context) error
	// Renew makes the lock last for Lease from now. For a library that renews by itself it
	// asks whether the lock is still held.
	Renew func(ctx context.Context) error
	// Release gives up the lock, and no lock of another holder.
	Release func(ctx context.Context) error
}

const (
	// minLease is the shortest lease, as in package core.
	minLease = 10 * time.Millisecond
	// releaseTime bounds the context of a release, as package core bounds its own.
	releaseTime = 2 * time.Second
)

// errOver is the cause of the context of the function when the function has returned.
var errOver = errors.New("interlock: the section under the other lock has ended")

// Do takes a lock of another library under a lease of this one, runs fn while both are
// held, and releases the lock of the other library. The lease is in ctx: ctx is
// [core.Lease.Context], the context of [core.Locker.Do], or the context of a handler under a
// guard. The caller releases the lease afterwards, as always.
//
// The context of fn derives from ctx, so that it ends when the lease is lost. It ends as
// well, with a cause that matches [core.ErrLost], when the other lock is lost: Renew says
// so, or no renewal succeeded before the lease of the lock has ended (1 % and 2 ms
// earlier, as for a [core.Lease]). Do renews the lock at once, to learn until when the lock
// lasts, and then each time a quarter of its lease has passed.
//
// When fn has returned, or panicked, Do waits for a renewal that is on its way, and then
// calls Release with a context that has the values of ctx, and ends after 2 s. An error of
// Release that does not match core.ErrLost is dropped: the lock ends with its lease.
//
// Do returns the error of fn. If the other lock was lost before fn returned, an error that
// matches [core.ErrLost] is joined to it: what fn did may overlap with another holder. If
// fn did not run, the error matches the error of Acquire or of the first renewal, and
// [context.Cause] of ctx if ctx has ended, or any of these:
//
//   - [core.ErrNoLease]: ctx runs under no lease. The other lock was not taken.
//   - [core.ErrConfig]: a field of the lock is missing, or the lease is too short.
func Do(ctx context.Context, other Lock, fn func(ctx context.Context) error) (err error) {
	switch {
	case other.Lease < minLease || other.Acquire == nil || other.Renew == nil || other.Release == nil:
		return fmt.Errorf("%w: alongside.Lock needs Acquire, Renew, Release, and a Lease of at least %v", core.ErrConfig, minLease)
	case core.LeaseFromContext(ctx) == nil:
		return fmt.Errorf("%w: take the lock of this library first, and call alongside.Do with its context", core.ErrNoLease)
	}
	if err := other.Acquire(ctx); err != nil {
		return fmt.Errorf("interlock: taking the other lock: %w", errors.Join(err, context.Cause(ctx)))
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), releaseTime)
		defer cancel()
		if released := other.Release(ctx); errors.Is(released, core.ErrLost) && !errors.Is(err, core.ErrLost) {
			err = errors.Join(err, lost(released))
		}
	}()
	// Acquire may have waited: only a renewal says until when the lock lasts.
	begin := time.Now()
	if err := errors.Join(other.Renew(ctx), context.Cause(ctx)); err != nil {
		return fmt.Errorf("interlock: renewing the other lock: %w", err)
	}
	ctx, cancel := context.WithCancelCause(ctx)
	h := &hold{other: other, cancel: cancel, end: begin.Add(other.trusted()), over: make(chan struct{})}
	h.timer = time.AfterFunc(time.Until(h.end), func() { cancel(lost(errEnded)) })
	go h.renew(ctx)
	defer func() {
		returned := time.Now()
		cancel(errOver)
		<-h.over // a renewal must not arrive after the release
		h.timer.Stop()
		why := context.Cause(ctx)
		if !errors.Is(why, core.ErrLost) && !returned.Before(h.end) {
			why = lost(errEnded) // the timer was late
		}
		if errors.Is(why, core.ErrLost) && !errors.Is(err, core.ErrLost) {
			err = errors.Join(err, why)
		}
	}()
	return fn(ctx)
}

// errEnded says why a lock was lost: no renewal said anything.
var errEnded = errors.New("its lease has ended without a renewal")

func lost(why error) error {
	return fmt.Errorf("%w: the other lock: %w", core.ErrLost, why)
}

// trusted is how long the lock is trusted after a renewal was sent.
func (l Lock) trusted() time.Duration { return l.Lease - l.Lease/100 - 2*time.Millisecond }

// hold is the other lock while it is held.
type hold struct {
	other  Lock
	cancel context.CancelCauseFunc
	timer  *time.Timer   // ends the context at the end of the lease, also while Renew hangs
	end    time.Time     // until when the lock is trusted; of renew until over is closed
	over   chan struct{} // closed when renew has returned
}

// renew renews the lock until ctx ends.
func (h *hold) renew(ctx context.Context) {
	defer close(h.over)
	ticker := time.NewTicker(h.other.Lease / 4)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		begin := time.Now()
		switch err := h.other.Renew(ctx); {
		case err == nil:
			h.end = begin.Add(h.other.trusted())
			h.timer.Reset(time.Until(h.end))
		case errors.Is(err, core.ErrLost):
			h.cancel(lost(err))
			return
		}
	}
}
