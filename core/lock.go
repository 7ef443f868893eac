package core

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/interlock-go/interlock/core/driver"
	"github.com/interlock-go/interlock/core/internal/clock"
	"github.com/interlock-go/interlock/core/internal/lock"
	"github.com/interlock-go/interlock/core/observe"
)

// lockOne takes the lock of one key.
func (l *Locker) lockOne(ctx context.Context, key string, c *config) (*Lease, error) {
	if err := checkKey(key); err != nil {
		return nil, err
	}
	lease := &Lease{config: c, parent: ctx}
	var start, deadline clock.Instant // where they are not needed, the clock is not read
	if c.terms.Wait > 0 || l.base.observer != nil {
		start = l.locks.Clock.Now()
		deadline = c.deadline(start)
	}
	if l.base.observer != nil {
		ctx = lease.observe(ctx, l, c, []string{key})
	}
	w, err := l.take(ctx, lease, &lease.own, key, c, start, deadline)
	lease.one[0] = w
	if l.base.observer != nil {
		lease.observedOne(l, err, start)
	}
	if err != nil {
		return nil, err
	}
	return lease, nil
}

// observedOne ends the observation of the acquisition of one lock, which is given
// up if the observer panics.
func (l *Lease) observedOne(locker *Locker, err error, start clock.Instant) {
	told := false
	defer func() {
		if !told && err == nil {
			l.giveUp()
		}
	}()
	l.observed(locker, err, start)
	told = true
}

// giveUp releases the locks of a lease that no caller got.
func (l *Lease) giveUp() {
	_, _, _ = l.leave(context.WithoutCancel(l.parent))
	l.end(ErrReleased) // where nothing was held, nothing else ends it
}

// lockWith takes the locks of keys, all or none.
func (l *Locker) lockWith(ctx context.Context, keys []string, c *config) (*Lease, error) {
	switch len(keys) {
	case 0:
		return nil, fmt.Errorf("%w: no key given", ErrKey)
	case 1:
		return l.lockOne(ctx, keys[0], c)
	}
	for _, key := range keys {
		if err := checkKey(key); err != nil {
			return nil, err
		}
	}
	keys = slices.Clone(keys)
	slices.Sort(keys)
	keys = slices.Compact(keys)

	start := l.locks.Clock.Now()
	lease := &Lease{config: c, parent: ctx, taking: true}
	taken := &lease.needMore().several
	*taken = make([]*lock.Waiter, 0, len(keys))
	if l.base.observer != nil {
		ctx = lease.observe(ctx, l, c, slices.Clone(keys)) // the observer may write to its own
	}
	// While later keys are waited for, the earlier ones are renewed, also those
	// that are to have a fixed lease in the end.
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
		w, err = l.take(ctx, lease, &own[i], key, renewed, start, c.deadline(start))
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

// lostCause is the cause with which a lease that is being taken has ended
// already, or an error that nothing matches.
func (l *Lease) lostCause() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ended != notEnded {
		return causes[l.ended]
	}
	return errNever
}

var errNever = errors.New("never")

// deadline is when a wait that begins now is over; zero is not at all.
func (c *config) deadline(start clock.Instant) clock.Instant {
	if c.terms.Wait <= 0 {
		return 0
	}
	return start.Add(c.terms.Wait)
}

// take takes one lock for a lease: a further hold, if a lease on its way up the
// context has the key, else through the queue. It returns the lock, which is
// that of the other lease if it was re-entered. A start of zero is now.
func (l *Locker) take(
	ctx context.Context, lease *Lease, w *lock.Waiter, key string, c *config, start, deadline clock.Instant,
) (*lock.Waiter, error) {
	w.Terms, w.Holder = &c.terms, (*holder)(lease)
	nested := false
	if outer, hidden := lease.around(); outer != nil {
		var held *lock.Waiter
		var err error
		if held, nested, err = l.reenter(lease, outer, hidden, key, c.terms.Kind); held != nil {
			return held, err
		}
	}
	now := start
	if nested {
		// The holder of the key may be waiting for one of ours.
		if start == 0 {
			start = l.locks.Clock.Now()
		}
		if bound := start.Add(l.base.heldWait); deadline == 0 || bound < deadline {
			deadline = bound
		}
	}
	if lease.taking || l.base.observer != nil || nested { // else nothing has taken time since
		now = l.locks.Clock.Now()
	}
	if !lease.taking {
		lease.left = 1 // no other goroutine has the lease yet
	}
	if err := l.locks.Acquire(ctx, w, key, now, deadline); err != nil {
		if nested && errors.Is(err, ErrHeld) {
			err = fmt.Errorf("%w (other locks are held: release them and start again)", err)
		}
		return w, err
	}
	if lease.taking {
		lease.mu.Lock()
		lease.left++
		lease.mu.Unlock()
	}
	return w, nil
}

// reenter looks for a key among the locks of the leases that a lease is taken
// under, from outer on. It returns the lock, with a hold more, or an
// error, and otherwise whether another lock is held. A lease that the context hides is not
// re-entered: the caller would get a context that does not end with it.
func (l *Locker) reenter(lease, outer *Lease, hidden bool, key string, kind driver.Kind) (has *lock.Waiter, nested bool, err error) {
	for next := hidden; outer != nil; outer, next = outer.around() {
		hidden = hidden || next
		all := outer.locks()
		if len(all) == 0 || outer.config.locker != l {
			continue
		}
		for _, held := range all {
			if held.Key() == key {
				if hidden && l.locks.Live(held) {
					return held, nested, fmt.Errorf("%w: %q is held by the request, and the context does not show that: "+
						"it is a *gin.Context; pass c.Request.Context(), or set ContextWithFallback of the gin engine", ErrConfig, key)
				}
				if err := mayReenter(key, held.Terms.Kind, kind); err != nil && l.locks.Live(held) {
					return held, nested, err
				} else if err != nil {
					continue
				}
				if ok, err := l.locks.Reenter(held); ok || err != nil {
					return held, nested, err
				}
				continue // released: an ordinary lock
			}
			if !l.locks.Live(held) {
				continue
			}
			nested = true
			if o := lease.observation(); key < held.Key() && o != nil && o.Disordered != nil {
				o.Disordered(key, held.Key())
			}
		}
	}
	return nil, nested, nil
}

// fix turns the leases of several keys into fixed ones, each with its whole TTL
// from now. Locks that were re-entered are left as they are.
func (l *Lease) fix(ctx context.Context, locker *Locker, c *config) error {
	var own []*lock.Waiter
	for _, w := range l.locks() {
		if l.took(w) {
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

// observe starts the observation of an acquisition.
func (l *Lease) observe(ctx context.Context, locker *Locker, c *config, keys []string) context.Context {
	op := observe.Operation{
		Rule: c.name, Kind: kinds[c.terms.Kind], AtMost: c.terms.AtMost, Keys: keys,
		Wait: c.terms.Wait, MaxHold: c.terms.MaxHold, Waiters: locker.locks.Waiters(keys[0]), Standby: c.standby,
	}
	ctx, o := locker.base.observer.Start(ctx, op)
	m := l.needMore()
	m.observed, m.obs = true, o
	return ctx
}

// observed ends the observation of an acquisition.
func (l *Lease) observed(locker *Locker, err error, start clock.Instant) {
	obs := l.observation()
	if obs == nil || obs.Acquired == nil {
		return
	}
	a := observe.Acquired{Err: err, Waited: locker.locks.Clock.Now().Sub(start), Reentered: true}
	for _, w := range l.locks() {
		if l.took(w) { // what another lease spent on a lock is not spent again
			a.Attempts += w.Attempts()
			a.Contended = a.Contended || w.Contended()
			a.Reentered = false
		}
	}
	if err == nil {
		a.Token = l.Token()
	}
	obs.Acquired(a)
}
