package fencing_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log"
	"strings"
	"time"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/fencing"
	"github.com/interlock-go/interlock/core/memstore"
)

// database is yours: any that database/sql has a driver for. This one shows its
// requests.
func database() (*sql.DB, *fakeDB) {
	f := &fakeDB{}
	return f.open(), f
}

// leaseOf is what a guard puts into the context of a handler, or Locker.Lock
// returns. done releases it and closes the locker.
func leaseOf(ctx context.Context, key string) (lease *core.Lease, done func()) {
	locker, err := core.New(memstore.New())
	if err != nil {
		log.Fatal(err)
	}
	if lease, err = locker.Lock(ctx, key); err != nil {
		log.Fatal(err)
	}
	return lease, func() {
		_ = lease.Release(ctx)
		_ = locker.Close(ctx)
	}
}

func debit(ctx context.Context, tx *sql.Tx, account string, amount int64) error {
	_, err := tx.ExecContext(ctx, "UPDATE accounts SET balance = balance - $1 WHERE id = $2", amount, account)
	return err
}

func ExampleTable_InTx() {
	db, asked := database()
	defer db.Close()
	ctx, account, amount := context.Background(), "42", int64(30)
	lease, done := leaseOf(ctx, "account/42")
	defer done()

	fences := fencing.Table{} // made by a migration: fences.Schema()
	err := fences.InTx(ctx, db, lease, nil, func(ctx context.Context, tx *sql.Tx) error {
		return debit(ctx, tx, account, amount) // reads, then writes
	})
	if errors.Is(err, core.ErrLost) { // fencing.ErrStale too
		log.Print("another process has the account, and nothing was written")
	}
	for _, statement := range asked.said() {
		fmt.Println(strings.ReplaceAll(statement, fmt.Sprint(lease.Token()), "token"))
	}
	// Output:
	// begin
	// INSERT INTO interlock_fence AS fence (key, token) VALUES ($1, $2) ON CONFLICT (key) DO UPDATE SET token = excluded.token WHERE fence.token <= excluded.token [account/42] [token]
	// UPDATE accounts SET balance = balance - $1 WHERE id = $2 [30] [42]
	// commit
}

func ExampleInTx() {
	db, asked := database()
	defer db.Close()
	ctx := context.Background()
	lease, done := leaseOf(ctx, "account/42")
	defer done()

	accounts := fencing.Column{Table: "accounts", ID: "id", Fence: "fence"}
	err := fencing.InTx(ctx, db, lease, nil, func(ctx context.Context, tx *sql.Tx) error {
		if err := accounts.Claim(ctx, tx, "42", lease.Token()); err != nil {
			return err
		}
		return debit(ctx, tx, "42", 30)
	})
	if err != nil {
		log.Fatal(err)
	}
	for _, statement := range asked.said() {
		fmt.Println(strings.ReplaceAll(statement, fmt.Sprint(lease.Token()), "token"))
	}
	// Output:
	// begin
	// UPDATE accounts SET fence = $1 WHERE id = $2 AND fence <= $1 [token] [42]
	// UPDATE accounts SET balance = balance - $1 WHERE id = $2 [30] [42]
	// commit
}

func ExampleTable_Claim() {
	db, asked := database()
	defer db.Close()
	ctx := context.Background()
	asked.latest = 8 // has been seen already

	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		log.Fatal(err)
	}
	defer func() { _ = tx.Rollback() }()
	err = fencing.Table{}.Claim(ctx, tx, "account/42", 7)
	fmt.Println(errors.Is(err, fencing.ErrStale))
	fmt.Println(err)
	// Output:
	// true
	// interlock: lease lost: stale fencing token 7 for "account/42", the latest is 8
}

func ExampleTable_Schema() {
	fmt.Println(fencing.Table{Name: "bank.fence"}.Schema())
	// Output:
	// CREATE TABLE IF NOT EXISTS bank.fence (key text NOT NULL PRIMARY KEY, token bigint NOT NULL)
}

func ExampleTable_Prune() {
	db, _ := database()
	defer db.Close()
	n, err := fencing.Table{}.Prune(context.Background(), db, time.Now().AddDate(0, 0, -30))
	fmt.Println(n, err)
	// Output:
	// 1 <nil>
}

func ExampleIdempotencyKey() {
	invoice := "4711"
	key := fencing.IdempotencyKey("invoice", invoice, "settle")
	fmt.Println(key)
	// Output:
	// f5d376d0-3572-81f8-9c4a-f406513c843c
}
