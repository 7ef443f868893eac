package core

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/interlock-go/interlock/core/driver"
	"github.com/interlock-go/interlock/core/internal/clock"
	"github.com/interlock-go/interlock/core/internal/lock"
)

// lockSeveral takes the locks of at least two keys, all or none.
func (l *Locker) lockSeveral(ctx context.Context, keys []string, c *config) (*Lease, error) {
	for _, key := range keys {
		if err := checkKey(key); err != nil {
			return nil, err
		}
	}
	keys = slices.Clone(keys)
	slices.Sort(keys)
	keys = slices.Compact(keys)

	start, deadline := l.locks.Clock.Now(), clock.Instant(0)
	if c.terms.Wait > 0 {
		deadline = start.Add(c.terms.Wait)
	}
	lease := &Lease{config: c, parent: ctx, taking: true}
	lease.noteRequest()
	taken := &lease.needMore().several
	*taken = make([]*lock.Waiter, 0, len(keys))
	if l.base.observer != nil {
		ctx = lease.observe(ctx, l, c, slices.Clone(keys)) // the observer may write to its own
	}
	// While later keys are waited for, the earlier ones are renewed, also if they are to
	// have a fixed lease in the end.
	renewed := c
	if c.terms.Fixed {
		copied := *c
		copied.terms.Fixed, copied.terms.WillFix = false, true
		renewed = &copied
	}
	own := make([]lock.Waiter, len(keys))
	var err error
	held, granted := 0, false
	defer func() {
		if granted {
			return
		}
		// Also after a panic of the observer, which passes through.
		*taken = (*taken)[:held]
		lease.mu.Lock()
		lease.taking = false
		lease.mu.Unlock()
		lease.giveUp()
	}()
	for i, key := range keys {
		var w *lock.Waiter
		w, err = l.take(ctx, lease, &own[i], key, renewed, start, deadline)
		*taken = append(*taken, w) // also where it failed, for the report
		if err != nil {
			break
		}
		held++
		ctx = lease.Context() //nolint:fatcontext // always the same; it ends when a lock taken so far is lost
	}
	if err == nil && c.terms.Fixed {
		err = lease.fix(ctx, l, c)
	}
	if err != nil && errors.Is(err, lease.lostCause()) {
		err = fmt.Errorf("%w: a lock of %q was lost while others were waited for", ErrLost, keys)
	}
	lease.observed(l, err, start)
	if err != nil {
		return nil, err
	}
	lease.mu.Lock()
	lease.taking = false
	lease.mu.Unlock()
	granted = true
	return lease, nil
}

// lostCause is the cause of a lease that has ended before all its locks were taken, or
// an error that nothing matches.
func (lease *Lease) lostCause() error {
	lease.mu.Lock()
	defer lease.mu.Unlock()
	if lease.ended != notEnded {
		return causes[lease.ended]
	}
	return errNever
}

var errNever = errors.New("never")

// fix turns the leases of several keys into fixed ones, each with its whole TTL
// from now. Locks that were re-entered are left as they are.
func (lease *Lease) fix(ctx context.Context, locker *Locker, c *config) error {
	var own []*lock.Waiter
	for _, w := range lease.locks() {
		if lease.took(w) {
			own = append(own, w)
		}
	}
	errs := locker.locks.Fix(ctx, own, c.ttl)
	for i, err := range errs {
		switch {
		case errors.Is(err, driver.ErrNotOwner):
			return fmt.Errorf("%w: %q: %w", ErrLost, own[i].Key(), err)
		case ctx.Err() != nil:
			return fmt.Errorf("interlock: waiting for %q: %w", own[i].Key(), context.Cause(ctx))
		case err != nil:
			return fmt.Errorf("%w: %q: fixing its lease: %w", ErrUnavailable, own[i].Key(), err)
		}
	}
	return nil
}
