package pgstore_test

import (
	"context"
	"database/sql"
	"net/http"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/idempotency"
	"github.com/interlock-go/interlock/core/pgstore"
	"github.com/interlock-go/interlock/httplock"
)

// A service has its accounts in PostgreSQL, and its records beside them.
func Example() {
	ctx := context.Background()
	db, err := sql.Open("pgx", "postgres://localhost/bank") // with the driver imported
	if err != nil {
		panic(err)
	}
	if err := serve(ctx, db, http.DefaultServeMux); err != nil {
		panic(err)
	}
}

func serve(ctx context.Context, db *sql.DB, mux *http.ServeMux) error {
	store, err := pgstore.New(db) // a *sql.DB, of any driver for PostgreSQL
	if err != nil {
		return err
	}
	err = store.Migrate(ctx) // or the files of Migrations, by a migration tool
	if err != nil {
		return err
	}
	engine, err := idempotency.New(store, idempotency.Transactional(),
		idempotency.Scope(core.FromContext("user")))
	if err != nil {
		return err
	}
	handler := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if err := debit(r.Context(), 25, "alice"); err != nil {
			http.Error(w, "try again", http.StatusInternalServerError) // and the engine rolls back
		}
	})
	mux.Handle("POST /payments", httplock.Idempotent(engine)(handler))
	return nil
}

func debit(ctx context.Context, amount int64, id string) error {
	tx, err := pgstore.Tx(ctx) // the transaction of this request
	if err != nil {
		return err
	}
	_, err = tx.ExecContext(ctx, "UPDATE account SET balance = balance - $1 WHERE id = $2", amount, id)
	return err
}
