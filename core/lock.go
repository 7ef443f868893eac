package core

import (
	"context"
	"errors"
	"fmt"

	"github.com/interlock-go/interlock/core/driver"
	"github.com/interlock-go/interlock/core/internal/clock"
	"github.com/interlock-go/interlock/core/internal/lock"
)

// lockOne takes the lock of one key.
func (l *Locker) lockOne(ctx context.Context, key string, c *config) (*Lease, error) {
	if err := checkKey(key); err != nil {
		return nil, err
	}
	lease := &Lease{config: c, parent: ctx}
	lease.noteRequest()
	var start, deadline clock.Instant // where they are not needed, the clock is not read
	if c.terms.Wait > 0 || l.base.observer != nil {
		if start = l.locks.Clock.Now(); c.terms.Wait > 0 {
			deadline = start.Add(c.terms.Wait)
		}
	}
	if err := l.lockUntil(ctx, lease, key, c, start, deadline); err != nil {
		return nil, err
	}
	return lease, nil
}

// lockUntil takes the lock of one key for a lease, until the deadline if that is not zero.
func (l *Locker) lockUntil(ctx context.Context, lease *Lease, key string, c *config, start, deadline clock.Instant) error {
	if l.base.observer != nil {
		ctx = lease.observe(ctx, l, c, []string{key})
	}
	w, err := l.take(ctx, lease, &lease.own, key, c, start, deadline)
	lease.one[0] = w
	if l.base.observer != nil {
		lease.observedOne(l, err, start)
	}
	return err
}

// lockWith takes the locks of keys, all or none.
func (l *Locker) lockWith(ctx context.Context, keys []string, c *config) (*Lease, error) {
	switch len(keys) {
	case 0:
		return nil, fmt.Errorf("%w: no key given", ErrKey)
	case 1:
		return l.lockOne(ctx, keys[0], c)
	}
	return l.lockSeveral(ctx, keys, c)
}

// checkKey refuses keys that no store should see.
func checkKey(key string) error {
	switch {
	case key == "":
		return fmt.Errorf("%w: empty; all callers would share one lock", ErrKey)
	case len(key) > maxKey:
		return fmt.Errorf("%w: %d bytes; at most %d are accepted", ErrKey, len(key), maxKey)
	}
	return nil
}

// take takes one lock for a lease: a further hold, if a lease on its way up the
// context has the key, else through the queue. It returns the waiter that has the lock:
// w, or the waiter of the other lease if that was re-entered. A start of zero is now.
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
		// The holder of the key may wait for a lock of ours.
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

// mayReenter returns an error if a caller that holds a key in one way cannot have it in
// another way under the same context: two callers that both did that would wait for
// each other for ever.
func mayReenter(key string, held, wanted driver.Kind) error {
	if held == driver.Exclusive || held == wanted {
		return nil
	}
	return fmt.Errorf("%w: %q", ErrUpgrade, key)
}
