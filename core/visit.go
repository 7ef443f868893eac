package core

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"

	"github.com/interlock-go/interlock/core/internal/lock"
)

// visit is a request under a guard, as the context that its leases derive from:
// there a loss finds what it tells of the request, and an adapter notes that the
// request is answered. It is made only where an option needs it.
type visit struct {
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

type visitKey struct{}

// Value implements context.Context.
func (v *visit) Value(key any) any {
	if _, ok := key.(visitKey); ok {
		return v
	}
	return v.Context.Value(key)
}

// visitOf returns the innermost visit that ctx belongs to, or nil.
func visitOf(ctx context.Context) *visit {
	v, _ := ctx.Value(visitKey{}).(*visit)
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
	v := visitOf(ctx)
	return v == nil || v.begin(success)
}

func (v *visit) begin(success bool) bool {
	if success && v.check && v.confirm() != nil {
		return false
	}
	v.answered.Store(true)
	return true
}

// confirm asks the store whether the lock is still held, and returns why not. A
// store that does not answer is no loss while the lease is good by our clock.
// What it has found once it finds again: the answer was held back for that.
func (v *visit) confirm() error {
	if v.lease == nil || v.lost != nil {
		return v.lost
	}
	_ = v.lease.Check(v.lease.Context()) // what it learns, Err knows
	if err := v.lease.Err(); !errors.Is(err, ErrReleased) {
		v.lost = err
	}
	return v.lost
}

// Check asks the store whether every lock that ctx runs under is still held, and
// renews these locks unless their leases are fixed ([TTL]). Call it just before a
// commit that must not happen without the locks, or let [Commit] call it. Between
// the store's answer and the commit a short time remains, which only a fencing
// token covers.
//
// Check returns nil if all locks are held, and also if a guard that fails open
// ([FailOpen]) let the request through without its lock. Else its error matches one
// of these:
//
//   - [ErrLost] or [ErrMaxHold]: a lease has ended.
//   - [ErrReleased]: a lease was released before.
//   - [ErrUnavailable]: the store did not answer within a sixth of the lease;
//     or [ErrKeyOccupied].
//   - [context.Cause] of ctx: ctx has ended.
//   - [ErrNoLease]: ctx runs under no lease.
func Check(ctx context.Context) error {
	lease := LeaseFromContext(ctx)
	if lease == nil {
		if v := visitOf(ctx); v != nil && v.bypassed {
			return nil
		}
		return ErrNoLease
	}
	for l := lease; l != nil; l = l.outer() {
		if err := l.Err(); err != nil {
			return err
		}
	}
	if ctx.Err() != nil {
		return fmt.Errorf("interlock: checking the lease: %w", context.Cause(ctx))
	}
	var asked []*lock.Waiter
	for ; lease != nil; lease = lease.outer() {
		for _, w := range lease.locks() {
			if slices.Contains(asked, w) {
				continue // re-entered
			}
			asked = append(asked, w)
			if err := lease.config.locker.locks.Confirm(ctx, w); err != nil {
				return err
			}
		}
		if err := lease.Err(); err != nil {
			return err
		}
	}
	return nil
}

// Commit calls commit if every lock that ctx runs under is still held, as [Check]
// finds out at that moment, and returns the error of commit. Else it does not call
// commit, and its error matches that of Check: roll back. A deferred Rollback does
// that by itself:
//
//	tx, err := db.BeginTx(ctx, nil)
//	if err != nil {
//		return err
//	}
//	defer tx.Rollback()
//	// ...
//	return core.Commit(ctx, tx.Commit)
//
// If the context of a transaction is that of the lease, database/sql rolls it back
// when the lease is lost while the transaction is open. Commit is for the other
// case: a loss that this process has not noticed yet.
func Commit(ctx context.Context, commit func() error) error {
	if err := Check(ctx); err != nil {
		return fmt.Errorf("interlock: not committed: %w", err)
	}
	return commit()
}
