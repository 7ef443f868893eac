//go:build long

package postgres_test

import (
	"context"
	"database/sql"
	"errors"
	"math/rand/v2"
	"net/http"
	"time"

	"github.com/interlock-go/interlock/core/idempotency"
	"github.com/interlock-go/interlock/core/idempotency/endpoint"
	"github.com/interlock-go/interlock/core/pgstore"
)

// ticketTime is the time of tickets. Some run out, since processes are stopped and killed.
const ticketTime = 2 * time.Second

// accept is the handler of a payment that a job makes. The message is a row.
func (p payer) accept(w http.ResponseWriter, r *http.Request) {
	ctx := r.Context()
	tx, err := pgstore.Tx(ctx)
	var ticket idempotency.Ticket
	if err == nil {
		p.step()
		ticket, err = idempotency.HandOver(ctx, ticketTime)
	}
	if err == nil {
		p.step()
		text, _ := ticket.MarshalText()
		_, err = tx.ExecContext(ctx, "INSERT INTO job VALUES ($1::text, $2::text)", string(text), r.Header.Get("Idempotency-Key"))
	}
	if err != nil {
		http.Error(w, "failed", http.StatusInternalServerError)
		return
	}
	p.step()
	w.WriteHeader(http.StatusAccepted)
}

// work delivers the messages: to each process, again and again, until a job is done.
func (p payer) work(db *sql.DB, engine *idempotency.Engine) {
	for ctx := context.Background(); ; time.Sleep(time.Duration(rand.IntN(20)) * time.Millisecond) {
		var text []byte
		var key string
		var ticket idempotency.Ticket
		err := db.QueryRowContext(ctx, "SELECT ticket, payment FROM job ORDER BY random() LIMIT 1").Scan(&text, &key)
		if err != nil || ticket.UnmarshalText(text) != nil {
			continue
		}
		err = engine.TakeOver(ctx, ticket, func(ctx context.Context) (endpoint.Response, error) {
			tx, err := pgstore.Tx(ctx)
			if err == nil {
				_, err = tx.ExecContext(ctx, "INSERT INTO ledger (payment) VALUES ($1::text)", key)
			}
			p.step()
			return endpoint.Response{Body: []byte("paid " + key)}, err
		})
		p.step()
		if err == nil || errors.Is(err, idempotency.ErrTicketFinished) || errors.Is(err, idempotency.ErrTicketRanOut) {
			_, _ = db.ExecContext(ctx, "DELETE FROM job WHERE ticket = $1::text", string(text)) // else it comes again
		}
	}
}
