package main

import (
	"context"
	"encoding/json"
	"errors"
	"log"
	"net/http"

	"github.com/jackc/pgx/v5"
)

// order is the request of a client.
type order struct {
	from   string // the user
	To     string
	Amount int64
}

// read returns the order of a request.
func read(r *http.Request) (o order, err error) {
	o.from = r.Context().Value(userKey{}).(string)
	if err := json.NewDecoder(r.Body).Decode(&o); err != nil || o.Amount < 1 {
		return o, errors.New(`want {"to": "bob", "amount": 5}`)
	}
	return o, nil
}

var (
	errAccount = errors.New("no such account")
	errFunds   = errors.New("insufficient funds")
)

// move takes the amount from one account and adds it to the other one. It neither commits
// nor rolls back.
func (o order) move(ctx context.Context, tx pgx.Tx) error {
	// Always in the same order, so that two payments do not wait for each other.
	accounts, err := tx.Exec(ctx, "SELECT FROM account WHERE id IN ($1, $2) ORDER BY id FOR UPDATE", o.from, o.To)
	if err != nil {
		return err
	}
	if accounts.RowsAffected() != 2 {
		return errAccount
	}
	taken, err := tx.Exec(ctx, "UPDATE account SET balance = balance - $1 WHERE id = $2 AND balance >= $1", o.Amount, o.from)
	if err != nil {
		return err
	}
	if taken.RowsAffected() == 0 {
		return errFunds
	}
	_, err = tx.Exec(ctx, "UPDATE account SET balance = balance + $1 WHERE id = $2", o.Amount, o.To)
	return err
}

// refuse answers a request when its payment was not made.
func refuse(w http.ResponseWriter, err error) {
	switch {
	case errors.Is(err, errAccount):
		http.Error(w, err.Error(), http.StatusNotFound)
	case errors.Is(err, errFunds):
		http.Error(w, err.Error(), http.StatusForbidden)
	default:
		log.Print(err)
		http.Error(w, "the payment was not made", http.StatusInternalServerError)
	}
}
