package core

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/interlock-go/interlock/core/driver"
	"github.com/interlock-go/interlock/core/internal/clock"
)

// lockOne takes the lock of one key.
func (l *Locker) lockOne(ctx context.Context, key string, c *config) (*Lease, error) {
	if err := checkKey(key); err != nil {
		return nil, err
	}
	lease := &Lease{parent: ctx}
	var start, deadline clock.Instant // where they are not needed, the clock is not read
	if c.wait > 0 || l.base.observer != nil {
		start = l.clock.Now()
		deadline = c.deadline(start)
	}
	if l.base.observer != nil {
		ctx = lease.observe(ctx, l, c, []string{key})
	}
	t, err := l.take(ctx, lease, &lease.own, key, c, start, deadline)
	lease.one[0] = t
	if lease.obs != nil {
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

	start := l.clock.Now()
	taken := make([]*turn, 0, len(keys))
	lease := &Lease{parent: ctx, several: &taken, taking: true}
	if l.base.observer != nil {
		ctx = lease.observe(ctx, l, c, keys)
	}
	// While later keys are waited for, the earlier ones are renewed, also those
	// that are to have a fixed lease in the end.
	renewed := c
	if c.fixed() {
		copied := *c
		copied.ttl, copied.watchdog = 0, c.ttl
		renewed = &copied
	}
	own := make([]turn, len(keys))
	var err error
	held, granted := 0, false
	defer func() {
		if granted {
			return
		}
		// Also after a panic of the observer, which passes through.
		taken = taken[:held]
		lease.ctxMu.Lock()
		lease.taking = false
		lease.ctxMu.Unlock()
		lease.giveUp()
	}()
	for i, key := range keys {
		var t *turn
		t, err = l.take(ctx, lease, &own[i], key, renewed, start, c.deadline(start))
		taken = append(taken, t) // also where it failed, for the report
		if err != nil {
			break
		}
		held++
		ctx = lease.Context() //nolint:fatcontext // always the same; it ends when a lock taken so far is lost
	}
	if err == nil && c.fixed() {
		err = lease.fix(ctx, l, c)
	}
	if err != nil && errors.Is(err, lease.lostCause()) {
		err = fmt.Errorf("%w: a lock of %q was lost while others were waited for", ErrLost, keys)
	}
	lease.observed(l, err, start)
	if err != nil {
		return nil, err
	}
	lease.ctxMu.Lock()
	lease.taking = false
	lease.ctxMu.Unlock()
	granted = true
	return lease, nil
}

// lostCause is the cause with which a lease that is being taken has ended
// already, or an error that nothing matches.
func (l *Lease) lostCause() error {
	l.ctxMu.Lock()
	defer l.ctxMu.Unlock()
	if l.cause != nil {
		return l.cause
	}
	return errNever
}

var errNever = errors.New("never")

// deadline is when a wait that begins now is over; zero is not at all.
func (c *config) deadline(start clock.Instant) clock.Instant {
	if c.wait <= 0 {
		return 0
	}
	return start.Add(c.wait)
}

// take takes one lock for a lease: a further hold, if a lease on its way up the
// context has the key, else through the queue. It returns the turn, which is
// that of the other lease if it was re-entered. A start of zero is now.
func (l *Locker) take(
	ctx context.Context, lease *Lease, t *turn, key string, c *config, start, deadline clock.Instant,
) (*turn, error) {
	t.cfg, t.lease = c, lease
	nested := false
	if outer := lease.outer(); outer != nil {
		var held *turn
		var err error
		if held, nested, err = l.reenter(lease, outer, key); held != nil {
			return held, err
		}
	}
	now := start
	if nested {
		// The holder of the key may be waiting for one of ours.
		if start == 0 {
			start = l.clock.Now()
		}
		if bound := start.Add(l.base.heldWait); deadline == 0 || bound < deadline {
			deadline = bound
		}
	}
	if lease.taking || lease.obs != nil || nested { // else nothing has taken time since
		now = l.clock.Now()
	}
	if !lease.taking {
		lease.left = 1 // no other goroutine has the lease yet
	}
	if err := l.acquire(ctx, t, key, now, deadline); err != nil {
		if nested && errors.Is(err, ErrHeld) {
			err = fmt.Errorf("%w (other locks are held: release them and start again)", err)
		}
		return t, err
	}
	if lease.taking {
		lease.ctxMu.Lock()
		lease.left++
		lease.ctxMu.Unlock()
	}
	return t, nil
}

// reenter looks for a key among the locks of the leases that a lease is taken
// under, from outer on. It returns the turn that has it, with a hold more or an
// error, and otherwise whether another lock is held.
func (l *Locker) reenter(lease, outer *Lease, key string) (has *turn, nested bool, err error) {
	for ; outer != nil; outer = outer.outer() {
		turns := outer.turns()
		if len(turns) == 0 || turns[0].entry.shard.locker != l {
			continue
		}
		for _, held := range turns {
			if held.key() == key {
				if ok, err := held.enter(l.clock.Now()); ok || err != nil {
					return held, nested, err
				}
				continue // released: an ordinary lock
			}
			if !held.live() {
				continue
			}
			nested = true
			if key < held.key() && lease.obs != nil && lease.obs.Disordered != nil {
				lease.obs.Disordered(key, held.key())
			}
		}
	}
	return nil, nested, nil
}

// live reports whether the turn is a possession.
func (t *turn) live() bool {
	t.entry.shard.mu.Lock()
	defer t.entry.shard.mu.Unlock()
	return t.state == granted && t.err == nil
}

// fix turns the leases of several keys into fixed ones, each with its whole TTL
// from now. Locks that were re-entered are left as they are.
func (l *Lease) fix(ctx context.Context, locker *Locker, c *config) error {
	var batch []driver.Renewal
	var turns []*turn
	for _, t := range l.turns() {
		if t.lease == l {
			turns = append(turns, t)
			batch = append(batch, driver.Renewal{Key: t.key(), Owner: locker.owner(t.ten.seq), TTL: c.ttl, Asked: true})
		}
	}
	bound, cancel := context.WithTimeout(ctx, c.ttl/6)
	defer cancel()
	errs := make([]error, len(turns))
	sent, ahead := locker.clock.Read()
	locker.store.Renew(bound, batch, func(i int, contended bool, err error) {
		errs[i] = err
		if err == nil {
			turns[i].ten.fix()
		}
		locker.dog.confirm(turns[i].ten, renewed{sent, ahead, true, contended, err}, false)
	})
	for i, err := range errs {
		switch {
		case errors.Is(err, ErrNotOwner):
			return fmt.Errorf("%w: %q: %w", ErrLost, turns[i].key(), err)
		case ctx.Err() != nil:
			return ended(ctx, turns[i].key())
		case err != nil:
			return fmt.Errorf("%w: %q: fixing its lease: %w", ErrUnavailable, turns[i].key(), err)
		}
	}
	return nil
}

// observe starts the observation of an acquisition.
func (l *Lease) observe(ctx context.Context, locker *Locker, c *config, keys []string) context.Context {
	op := Operation{Rule: c.name, Keys: keys, Wait: c.wait}
	sh := locker.shardOf(keys[0])
	sh.mu.Lock()
	if e := sh.entries[keys[0]]; e != nil {
		op.Waiters = int(e.n)
	}
	sh.mu.Unlock()
	ctx, o := locker.base.observer.Start(ctx, op)
	l.obs = &o
	return ctx
}

// observed ends the observation of an acquisition.
func (l *Lease) observed(locker *Locker, err error, start clock.Instant) {
	if l.obs == nil || l.obs.Acquired == nil {
		return
	}
	a := Acquired{Err: err, Waited: locker.clock.Now().Sub(start), Reentered: true}
	for _, t := range l.turns() {
		if t.lease == l { // what another lease spent on a lock is not spent again
			a.Attempts += int(t.attempts)
			a.Contended = a.Contended || t.waited
			a.Reentered = false
		}
	}
	if err == nil {
		a.Token = l.Token()
	}
	l.obs.Acquired(a)
}
