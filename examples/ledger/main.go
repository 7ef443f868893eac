// Command ledger makes payments between accounts in PostgreSQL. The rows of a payment
// and the answer that its retries get are committed in one transaction. A process that
// is killed at any point leaves both or neither, and no outcome is unknown.
//
//	go run . -postgres 'postgres://postgres@localhost:5432/postgres'
//	curl -u alice:secret localhost:8080/payments -H 'Idempotency-Key: k1' -d '{"to": "bob", "amount": 5}'
//
// The same request again gets a replay, with the number of the same payment. An amount of
// 1000 is declined (403). That is an answer as well, and its retries get it. After a
// failure (500) nothing of the payment is there, and a retry makes it.
package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/idempotency"
	"github.com/interlock-go/interlock/httplock"
	"github.com/interlock-go/interlock/pgxstore"
)

// run serves until ctx ends.
func run(ctx context.Context, pool *pgxpool.Pool) error {
	store, err := pgxstore.New(pool)
	if err != nil {
		return err
	}
	if err := store.Migrate(ctx); err != nil { // makes the tables of the records
		return err
	}
	engine, err := idempotency.New(store, idempotency.Transactional(),
		idempotency.Scope(core.FromContext(userKey{})),
		idempotency.Lease(*lease), idempotency.MaxHold(30*time.Second), idempotency.WaitReplay(5*time.Second))
	if err != nil {
		return err
	}
	mux := http.NewServeMux()
	mux.Handle("POST /payments", httplock.Idempotent(engine)(http.HandlerFunc(pay)))

	return errors.Join(serve(ctx, authenticated(mux)), // until the last request is answered
		within(ctx, time.Minute, engine.Close),
		store.Close())
}

// pay makes a payment of the user. The engine commits it together with this answer, before
// the client gets any of the answer. If the answer is a failure, the engine rolls back.
func pay(w http.ResponseWriter, r *http.Request) {
	order, err := read(r)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	var payment int64
	tx, err := pgxstore.Tx(r.Context()) // the transaction of this request
	if err == nil {
		err = order.move(r.Context(), tx) // from one balance to the other
	}
	if err == nil {
		err = tx.QueryRow(r.Context(), "INSERT INTO payment (sender, receiver, amount) VALUES ($1, $2, $3) RETURNING id",
			order.from, order.To, order.Amount).Scan(&payment)
	}
	if err != nil {
		refuse(w, err) // 403 and 404 are answers like any other; 500 rolls back
		return
	}
	w.WriteHeader(http.StatusCreated)
	_, _ = fmt.Fprintf(w, "payment %d\n", payment)
}
