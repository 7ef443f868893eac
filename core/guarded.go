package core

import (
	"context"
	"errors"
	"sync/atomic"
)

// guarded is a request under a guard, as the context that its leases derive from:
// there a loss finds what it tells of the request, and an adapter notes that the
// request is answered. It is made only where an option needs it.
type guarded struct {
	context.Context
	route     string
	principal Hashed
	answered  atomic.Bool // read when a loss is reported

	bypassed bool      // without a lock, since the rule fails open
	admitted *admitted // by PerPrincipal; nil without a limit
	check    bool      // CheckAnswer
	lease    *Lease    // set before the handler runs
	lost     error     // why CheckAnswer held the answer back
}

type guardedKey struct{}

// Value implements context.Context.
func (v *guarded) Value(key any) any {
	if _, ok := key.(guardedKey); ok {
		return v
	}
	return v.Context.Value(key)
}

// guardedOf returns the innermost guarded request that ctx belongs to, or nil.
func guardedOf(ctx context.Context) *guarded {
	v, _ := ctx.Value(guardedKey{}).(*guarded)
	return v
}

// BeginAnswer is for adapters. An adapter calls it once, with the context that
// [Guard.Do] gave to its handler, when the handler begins an answer that cannot be
// taken back, and before any part of it leaves. success says whether the answer is
// one of success (in HTTP a status below 400).
//
// BeginAnswer returns false if the answer must not leave, because the guard checks
// answers ([CheckAnswer]) and the lock was lost. The adapter then drops what the
// handler writes, and reports to Guard.Do that nothing was answered. Without a
// guard in ctx it returns true.
func BeginAnswer(ctx context.Context, success bool) bool {
	v := guardedOf(ctx)
	return v == nil || v.begin(success)
}

func (v *guarded) begin(success bool) bool {
	if success && v.check && v.confirm() != nil {
		return false
	}
	v.answered.Store(true)
	return true
}

// confirm asks the store whether the lock is still held, and returns why not. A
// store that does not answer is no loss while the lease is good by our clock.
// What it has found once it finds again: the answer was held back for that.
func (v *guarded) confirm() error {
	if v.lease == nil || v.lost != nil {
		return v.lost
	}
	_ = v.lease.Check(v.lease.Context()) // what it learns, Err knows
	if err := v.lease.Err(); !errors.Is(err, ErrReleased) {
		v.lost = err
	}
	return v.lost
}
