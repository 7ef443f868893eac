// Command ledger makes payments between accounts in PostgreSQL. The rows of a payment
// and the answer that its retries get are committed in one transaction. A process that
// is killed at any point leaves both or neither, and no outcome is unknown.
//
// It needs a database in which it may create tables. To start a server of your own, with
// the programs of the package postgresql (on Debian they are in
// /usr/lib/postgresql/15/bin, and do not run as root):
//
//	initdb -D /tmp/ledger -U postgres -A trust
//	postgres -D /tmp/ledger -p 5433 -k /tmp
//	go run . -postgres 'postgres://postgres@localhost:5433/postgres'
//
// Several processes, with different -addr, serve one ledger. To pay, and to pay again:
//
//	curl -u alice:secret localhost:8080/payments -H 'Idempotency-Key: k1' -d '{"to": "bob", "amount": 5}'
//
// The second answer is a replay, with the number of the same payment. An amount of 1000
// is declined (402). That is an answer as well, and its retries get it. After a failure
// (500) nothing of the payment is there, and a retry makes it.
package main

import (
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"log"
	"net/http"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/idempotency"
	"github.com/interlock-go/interlock/httplock"
	"github.com/interlock-go/interlock/pgxstore"
)

//go:embed schema.sql
var schema string

// run serves until ctx ends.
func run(ctx context.Context) error {
	pool, err := pgxpool.New(ctx, *postgres)
	if err != nil {
		return err
	}
	defer pool.Close()
	store, err := pgxstore.New(pool)
	if err != nil {
		return err
	}
	if err := store.Migrate(ctx); err != nil { // the tables of the records
		return err
	}
	if _, err := pool.Exec(ctx, schema); err != nil { // those of the ledger
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

// pay makes a payment of the user. The engine commits it together with this answer,
// before the client gets any of the answer.
func pay(w http.ResponseWriter, r *http.Request) {
	var order struct {
		To     string
		Amount int64
	}
	if err := json.NewDecoder(r.Body).Decode(&order); err != nil || order.Amount < 1 {
		http.Error(w, `want {"to": "bob", "amount": 5}`, http.StatusBadRequest)
		return
	}
	payment, err := transfer(r.Context(), r.Context().Value(userKey{}).(string), order.To, order.Amount)
	switch {
	case errors.Is(err, errAccount):
		http.Error(w, err.Error(), http.StatusNotFound)
	case errors.Is(err, errFunds): // an answer like any other: it is stored, and replayed
		http.Error(w, err.Error(), http.StatusPaymentRequired)
	case err != nil: // the engine rolls back, and a retry is carried out
		log.Print(err)
		http.Error(w, "the payment was not made", http.StatusInternalServerError)
	default:
		w.WriteHeader(http.StatusCreated)
		_, _ = fmt.Fprintf(w, "payment %d\n", payment)
	}
}

var (
	errAccount = errors.New("no such account")
	errFunds   = errors.New("insufficient funds")
)

// transfer takes an amount from one account and gives it to another one. It neither
// commits nor rolls back.
func transfer(ctx context.Context, from, to string, amount int64) (payment int64, err error) {
	tx, err := pgxstore.Tx(ctx) // the transaction of this request
	if err != nil {
		return 0, err
	}
	// Always in the same order, so that two transfers do not wait for each other.
	accounts, err := tx.Exec(ctx, "SELECT FROM account WHERE id IN ($1, $2) ORDER BY id FOR UPDATE", from, to)
	if err != nil {
		return 0, err
	}
	if accounts.RowsAffected() != 2 {
		return 0, errAccount
	}
	taken, err := tx.Exec(ctx, "UPDATE account SET balance = balance - $1 WHERE id = $2 AND balance >= $1", amount, from)
	if err != nil {
		return 0, err
	}
	if taken.RowsAffected() == 0 {
		return 0, errFunds
	}
	if _, err := tx.Exec(ctx, "UPDATE account SET balance = balance + $1 WHERE id = $2", amount, to); err != nil {
		return 0, err
	}
	err = tx.QueryRow(ctx, "INSERT INTO payment DEFAULT VALUES RETURNING id").Scan(&payment)
	if err != nil {
		return 0, err
	}
	_, err = tx.Exec(ctx, "INSERT INTO entry (payment, account, amount) VALUES ($1, $2, $3), ($1, $4, $5)",
		payment, from, -amount, to, amount)
	return payment, err
}
