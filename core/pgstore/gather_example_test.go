package pgstore_test

import (
	"context"
	"fmt"
	"net/http"
	"time"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/pgstore"
)

// Debit is an item of a batch.
type Debit struct{ Amount int64 }

// debitAll debits an account by all items of a batch with one statement, and returns the balance after each.
func debitAll(ctx context.Context, tx *pgstore.Transaction, key string, batch []Debit) ([]int64, error) {
	total := int64(0)
	for _, debit := range batch {
		total += debit.Amount
	}
	var balance int64
	row := tx.QueryRowContext(ctx, "UPDATE account SET balance = balance - $1 WHERE id = $2 RETURNING balance", total, key)
	if err := row.Scan(&balance); err != nil {
		return nil, err
	}
	balances := make([]int64, len(batch))
	for i := len(batch) - 1; i >= 0; i-- {
		balances[i] = balance
		balance += batch[i].Amount
	}
	return balances, nil
}

// The requests that wait for one account share a lock, a transaction and a commit.
func ExampleGather() {
	var store *pgstore.Store
	var locker *core.Locker
	serve := func() http.Handler {
		debits := pgstore.Gather(store, locker, debitAll, core.MaxHold(10*time.Second))
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			key, err := core.Key("account", r.PathValue("id"))
			if err != nil {
				http.Error(w, "no such account", http.StatusNotFound)
				return
			}
			balance, err := debits.Do(r.Context(), key, Debit{Amount: 5})
			if err != nil {
				http.Error(w, "try again", http.StatusInternalServerError)
				return
			}
			_, _ = fmt.Fprint(w, balance)
		})
	}
	_ = serve // inside httplock.Idempotent, or the middleware of another adapter
}

// An item that is refused does not undo the others of its batch.
func ExampleEach() {
	debitOne := pgstore.Each(func(ctx context.Context, tx *pgstore.Transaction, key string, debit Debit) (balance int64, err error) {
		row := tx.QueryRowContext(ctx, "UPDATE account SET balance = balance - $1 WHERE id = $2 AND balance >= $1 RETURNING balance", debit.Amount, key)
		return balance, row.Scan(&balance)
	})
	var store *pgstore.Store
	var locker *core.Locker
	_ = func() *pgstore.Batches[Debit, int64] { return pgstore.Gather(store, locker, debitOne) }
}
