//go:build long && unix

package fencing_test

import (
	"context"
	"database/sql"
	"errors"
	"testing"
	"time"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/fencing"
	"github.com/interlock-go/interlock/core/memstore"
	"github.com/interlock-go/interlock/trust/internal/pgtest"
)

// key is the key of the lock of the account.
const key = "account/42"

func TestATransactionUnderALease(t *testing.T) {
	t.Parallel()
	locks := memstore.New()
	locker := newLocker(t, locks)
	onEach(t, func(t *testing.T, db *sql.DB) {
		debit := func(lease *core.Lease, meanwhile func()) error {
			return fences.InTx(t.Context(), db, lease, nil, func(ctx context.Context, tx *sql.Tx) error {
				n, err := balance(ctx, tx)
				if err != nil {
					return err
				}
				meanwhile()
				return setBalance(ctx, tx, n-10)
			})
		}
		lock := func() *core.Lease {
			lease, err := locker.Lock(t.Context(), key)
			if err != nil {
				t.Fatal(err)
			}
			return lease
		}
		breakLock := func() {
			if !locks.Expire(key) {
				t.Error("there is no lock")
			}
		}

		first := lock()
		if err := errors.Join(debit(first, func() {}), debit(first, func() {})); err != nil {
			t.Fatal(err)
		}
		wantBalance(t, db, 80)
		if got := latest(t, db, key); got != first.Token() {
			t.Errorf("the fence is %d, the token %d", got, first.Token())
		}
		if err := first.Release(t.Context()); err != nil {
			t.Fatal(err)
		}

		// The lock is gone just before the commit, and no other holder has claimed yet.
		second := lock()
		err := debit(second, breakLock)
		if !errors.Is(err, core.ErrLost) || errors.Is(err, fencing.ErrStale) {
			t.Errorf("%v, want ErrLost", err)
		}
		if err := second.Release(t.Context()); !errors.Is(err, core.ErrLost) {
			t.Errorf("release: %v", err)
		}
		wantBalance(t, db, 80)
		if got := latest(t, db, key); got != first.Token() {
			t.Errorf("what was rolled back has claimed for %d", got)
		}
	})
}

// A lease ends while the database works: the statement is cancelled, and the
// handler cannot overlook it.
func TestALeaseThatEndsInTheMiddleCancelsTheStatement(t *testing.T) {
	t.Parallel()
	db := pgtest.Open(t)
	prepare(t, db)
	locker := newLocker(t, memstore.New())
	lease, err := locker.Lock(t.Context(), key, core.TTL(time.Second))
	if err != nil {
		t.Fatal(err)
	}
	err = fences.InTx(t.Context(), db, lease, nil, func(ctx context.Context, tx *sql.Tx) error {
		_, err := tx.ExecContext(ctx, "UPDATE accounts SET balance = 0; SELECT pg_sleep(3600)")
		return err
	})
	if !errors.Is(err, core.ErrLost) {
		t.Errorf("%v, want ErrLost", err)
	}
	wantBalance(t, db, 100)
	_ = lease.Release(t.Context()) // ErrLost
}
