package pgstore_test

import (
	"context"
	"database/sql"
	"net/http"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/idempotency"
	"github.com/interlock-go/interlock/core/pgstore"
)

// A service has its accounts in PostgreSQL, and its records in the same database.
func Example() {
	ctx := context.Background()
	db, err := sql.Open("pgx", "postgres://localhost/bank") // with the driver imported
	if err != nil {
		panic(err)
	}
	if _, err := newEngine(ctx, db); err != nil {
		panic(err)
	}
}

func newEngine(ctx context.Context, db *sql.DB) (*idempotency.Engine, error) {
	store, err := pgstore.New(db) // a *sql.DB, of any driver for PostgreSQL
	if err != nil {
		return nil, err
	}
	err = store.Migrate(ctx) // or the files of Migrations, by a migration tool
	if err != nil {
		return nil, err
	}
	engine, err := idempotency.New(store, idempotency.Transactional(),
		idempotency.Scope(core.FromContext("user")))
	return engine, err
}

// The handler of a request makes its effect in the transaction of that request.
func ExampleTx() {
	handler := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if err := debit(r.Context(), 25, "alice"); err != nil {
			http.Error(w, "try again", http.StatusInternalServerError) // and the engine rolls back
		}
	})
	http.Handle("POST /payments", handler) // the handler inside httplock.Idempotent
}

func debit(ctx context.Context, amount int64, id string) error {
	tx, err := pgstore.Tx(ctx) // the transaction of this request
	if err != nil {
		return err
	}
	_, err = tx.ExecContext(ctx, "UPDATE account SET balance = balance - $1 WHERE id = $2", amount, id)
	return err
}
