package core

import (
	"context"
	"fmt"
	"slices"

	"github.com/interlock-go/interlock/core/internal/lock"
)

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
		if v := guardedOf(ctx); v != nil && v.bypassed {
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
// commit, and its error matches the error of Check: roll back. A deferred Rollback does
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
// If the context of a transaction is the context of the lease, database/sql rolls it back
// when the lease is lost while the transaction is open. Commit is for the other
// case: a loss that this process has not noticed yet.
func Commit(ctx context.Context, commit func() error) error {
	if err := Check(ctx); err != nil {
		return fmt.Errorf("interlock: not committed: %w", err)
	}
	return commit()
}
