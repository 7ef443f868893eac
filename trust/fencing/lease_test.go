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
	"github.com/interlock-go/interlock/internal/redistest"
	"github.com/interlock-go/interlock/trust/internal/pgtest"
)

// lockName is where the lock of account/42 is in Redis.
const lockName = "interlock:{account/42}"

func TestATransactionUnderALease(t *testing.T) {
	srv := redistest.Start(t)
	locker := newLocker(t, srv)
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
			lease, err := locker.Lock(t.Context(), "account/42")
			if err != nil {
				t.Fatal(err)
			}
			return lease
		}
		breakLock := func() {
			if n, err := srv.Client(t).Del(t.Context(), lockName).Result(); n != 1 || err != nil {
				t.Errorf("deleted %d, %v", n, err)
			}
		}

		first := lock()
		if err := errors.Join(debit(first, func() {}), debit(first, func() {})); err != nil {
			t.Fatal(err)
		}
		wantBalance(t, db, 80)
		if got := latest(t, db, "account/42"); got != first.Token() {
			t.Errorf("the fence is %d, the token %d", got, first.Token())
		}
		if err := first.Release(t.Context()); err != nil {
			t.Fatal(err)
		}

		// The lock is gone just before the commit, and nobody else has claimed yet.
		second := lock()
		err := debit(second, breakLock)
		if !errors.Is(err, core.ErrLost) || errors.Is(err, fencing.ErrStale) {
			t.Errorf("%v, want ErrLost", err)
		}
		if err := second.Release(t.Context()); !errors.Is(err, core.ErrLost) {
			t.Errorf("release: %v", err)
		}
		wantBalance(t, db, 80)
		if got := latest(t, db, "account/42"); got != first.Token() {
			t.Errorf("what was rolled back has claimed for %d", got)
		}
	})
}

// A lease ends while the database works: the statement is cancelled, and the
// handler cannot overlook it.
func TestALeaseThatEndsInTheMiddleCancelsTheStatement(t *testing.T) {
	db := pgtest.Open(t)
	prepare(t, db)
	locker := newLocker(t, redistest.Start(t))
	lease, err := locker.Lock(t.Context(), "account/42", core.TTL(300*time.Millisecond))
	if err != nil {
		t.Fatal(err)
	}
	begin := time.Now()
	err = fences.InTx(t.Context(), db, lease, nil, func(ctx context.Context, tx *sql.Tx) error {
		if err := setBalance(ctx, tx, 0); err != nil {
			return err
		}
		_, err := tx.ExecContext(ctx, "SELECT pg_sleep(60)")
		return err
	})
	if !errors.Is(err, core.ErrLost) {
		t.Errorf("%v, want ErrLost", err)
	}
	if took := time.Since(begin); took > 30*time.Second {
		t.Errorf("after %v", took)
	}
	wantBalance(t, db, 100)
	_ = lease.Release(t.Context()) // ErrLost
}
