//go:build long && unix

package examples

import (
	"context"
	"database/sql"
	"errors"
	"testing"
	"time"

	"github.com/interlock-go/interlock/core/fencing"
	"github.com/interlock-go/interlock/examples/payments/bank"
	"github.com/interlock-go/interlock/trust/internal/pgtest"
)

func noWork(context.Context) error { return nil }

// openBank returns a bank with no accounts, whose payments are made in tx.
func openBank(t *testing.T, db *sql.DB, work func(context.Context) error, tx *sql.Tx) *bank.Bank {
	t.Helper()
	if err := bank.Migrate(t.Context(), db); err != nil {
		t.Fatal(err)
	}
	return bank.NewSQL(db, work, func(context.Context) (*sql.Tx, error) {
		if tx == nil {
			return nil, &fencing.StaleError{Key: "account/alice", Token: 1, Latest: 2}
		}
		return tx, nil
	})
}

func put(t *testing.T, b *bank.Bank, token int64, balances map[string]int64) {
	t.Helper()
	for id, balance := range balances {
		if _, err := b.Put(t.Context(), bank.Held{ID: id, Token: token}, balance); err != nil {
			t.Fatal(err)
		}
	}
}

func wantBalance(t *testing.T, b *bank.Bank, id string, want int64) {
	t.Helper()
	if a, err := b.Get(t.Context(), id); err != nil || a.Balance != want {
		t.Errorf("%s has %d (%v), want %d", id, a.Balance, err, want)
	}
}

func TestChangesUnderTheLatestToken(t *testing.T) {
	t.Parallel()
	b := openBank(t, pgtest.Open(t), noWork, nil)
	put(t, b, 1, map[string]int64{"alice": 100, "bob": 5})
	if a, err := b.Debit(t.Context(), bank.Held{ID: "alice", Token: 2}, 30); err != nil || a != (bank.Account{ID: "alice", Balance: 70}) {
		t.Errorf("debit: %+v, %v", a, err)
	}
	// The same token again, and accounts that are not named in their order.
	from, to, err := b.Transfer(t.Context(), bank.Held{ID: "bob", Token: 1}, bank.Held{ID: "alice", Token: 2}, 5)
	if err != nil || from != (bank.Account{ID: "bob"}) || to != (bank.Account{ID: "alice", Balance: 75}) {
		t.Errorf("transfer: %+v, %+v, %v", from, to, err)
	}
	wantBalance(t, b, "alice", 75)
	wantBalance(t, b, "bob", 0)
	if err := b.Forget(t.Context(), "alice"); err != nil {
		t.Error(err)
	}
	if _, err := b.Get(t.Context(), "alice"); !errors.Is(err, bank.ErrUnknownAccount) {
		t.Errorf("forgotten: %v", err)
	}
	wantBalance(t, b, "bob", 0)
}

func TestRefusedChangesChangeNothing(t *testing.T) {
	t.Parallel()
	db := pgtest.Open(t)
	tx, err := db.BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback() }()
	b := openBank(t, db, noWork, tx)
	put(t, b, 10, map[string]int64{"alice": 100, "bob": 100})
	held := func(id string, token int64) bank.Held { return bank.Held{ID: id, Token: token} }
	transfer := func(from, to bank.Held, amount int64) error {
		_, _, err := b.Transfer(t.Context(), from, to, amount)
		return err
	}
	debit := func(h bank.Held, amount int64) error { _, err := b.Debit(t.Context(), h, amount); return err }
	_, putErr := b.Put(t.Context(), held("alice", 9), 1)
	_, getErr := b.Get(t.Context(), "unknown")
	_, unsafeErr := b.DebitUnsafe(t.Context(), "unknown", 1)
	_, payErr := b.Pay(t.Context(), bank.Order{Account: held("alice", 9), Amount: 1, Reference: "a", Remember: time.Minute}, noWork)
	for name, c := range map[string]struct{ got, want error }{
		"put, stale":                     {putErr, bank.ErrStaleToken},
		"debit, stale":                   {debit(held("alice", 9), 1), bank.ErrStaleToken},
		"from a stale one":               {transfer(held("alice", 9), held("bob", 20), 1), bank.ErrStaleToken},
		"to a stale one":                 {transfer(held("alice", 20), held("bob", 9), 1), bank.ErrStaleToken},
		"payment, stale":                 {payErr, bank.ErrStaleToken},
		"more than there is":             {debit(held("alice", 10), 101), bank.ErrInsufficientFunds},
		"an unknown account":             {getErr, bank.ErrUnknownAccount},
		"debit of an unknown account":    {debit(held("unknown", 1), 1), bank.ErrUnknownAccount},
		"unsafe debit":                   {unsafeErr, bank.ErrUnknownAccount},
		"transfer to an unknown account": {transfer(held("bob", 20), held("unknown", 1), 1), bank.ErrUnknownAccount},
		"below the first token":          {debit(held("alice", 0), 1), bank.ErrUnavailable},
	} {
		if !errors.Is(c.got, c.want) {
			t.Errorf("%s: %v, want %v", name, c.got, c.want)
		}
	}
	wantBalance(t, b, "alice", 100)
	wantBalance(t, b, "bob", 100)
	// A refused transfer claims neither side: 10 is still good for both.
	if err := transfer(held("alice", 10), held("bob", 10), 1); err != nil {
		t.Error(err)
	}
}

// What a payment changes is decided by the transaction of its request.
func TestAPaymentIsPartOfTheTransaction(t *testing.T) {
	t.Parallel()
	db := pgtest.Open(t)
	for _, c := range []struct {
		end  func(*sql.Tx) error
		want int64
	}{{(*sql.Tx).Rollback, 100}, {(*sql.Tx).Commit, 70}} {
		put(t, openBank(t, db, noWork, nil), 1, map[string]int64{"alice": 100})
		tx, err := db.BeginTx(t.Context(), nil)
		if err != nil {
			t.Fatal(err)
		}
		b := openBank(t, db, noWork, tx)
		order := bank.Order{Account: bank.Held{ID: "alice", Token: 1}, Amount: 30, Reference: "a", Remember: time.Minute}
		p, err := b.Pay(t.Context(), order, noWork)
		if err != nil || p.ID == "" || p.Balance != 70 || p.Amount != 30 || p.Account != "alice" {
			t.Errorf("%+v, %v", p, err)
		}
		wantBalance(t, b, "alice", 100) // before the commit
		if err := c.end(tx); err != nil {
			t.Error(err)
		}
		wantBalance(t, b, "alice", c.want)
		var n int64
		if err := db.QueryRowContext(t.Context(), "SELECT count(*) FROM payments_payment WHERE id = $1 AND amount = 30", p.ID).Scan(&n); err != nil || n != (100-c.want)/30 {
			t.Errorf("%d payments, %v", n, err)
		}
	}
	// The fence of its lock has a later holder.
	b := openBank(t, db, noWork, nil)
	_, err := b.Pay(t.Context(), bank.Order{Account: bank.Held{ID: "alice", Token: 2}, Amount: 1, Reference: "b", Remember: time.Minute}, noWork)
	if !errors.Is(err, bank.ErrStaleToken) {
		t.Errorf("got %v, want ErrStaleToken", err)
	}
}
