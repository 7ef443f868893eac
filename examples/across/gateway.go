package main

import (
	"context"
	"encoding/json"
	"errors"
	"log"
	"net"
	"net/http"
	"net/url"
	"time"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/idempotency"
	"github.com/interlock-go/interlock/core/idempotency/endpoint"
	"github.com/interlock-go/interlock/examples/across/ledgerpb"
	"github.com/interlock-go/interlock/httplock"
	"github.com/interlock-go/interlock/pgxstore"
)

// gateway serves the clients until ctx ends.
func (s *service) gateway(ctx context.Context) error {
	account := core.Serialize(s.locker, "account/{from}") // the ledger makes the same key
	once := httplock.Idempotent(s.payments.With(idempotency.Under(account)))(http.HandlerFunc(s.pay))
	mux := http.NewServeMux()
	mux.HandleFunc("POST /accounts/{from}/payments", func(w http.ResponseWriter, r *http.Request) {
		once.ServeHTTP(w, r)
		at("answered") // the answer is stored, and has not left yet
	})
	mux.HandleFunc("GET /accounts/{from}/payments/{id}", s.look)
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", *addr)
	if err != nil {
		return err
	}
	server := &http.Server{Handler: mux, ReadTimeout: 10 * time.Second, WriteTimeout: time.Minute}
	stopped := make(chan error, 1)
	context.AfterFunc(ctx, func() { stopped <- within(ctx, server.Shutdown) })
	if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return <-stopped
}

// payer is the owner of the keys of clients. A real service asks who has logged in.
func payer(_ context.Context, r core.Request) (string, error) { return r.Param("from") }

// message goes to the consumer. The tickets are secrets: each reader could take lock and request.
type message struct {
	Payment *ledgerpb.Payment
	Lock    core.Ticket
	Claim   idempotency.Ticket
}

// pay debits the payer, and leaves the rest to the consumer. If it fails or dies, the client tries
// again. Then pay runs from its start, and Debit gets the same key. A client that gives up leaves a
// debit without a credit; a real service looks for these.
func (s *service) pay(w http.ResponseWriter, r *http.Request) {
	p := new(ledgerpb.Payment)
	if err := json.NewDecoder(r.Body).Decode(p); err != nil || p.GetTo() == "" || p.GetAmount() < 1 {
		http.Error(w, `want {"to": "bob", "amount": 5}`, http.StatusBadRequest)
		return
	}
	p.Id, _ = endpoint.ParseKey(r.Header.Values(idempotency.KeyHeader)) // the middleware has read it
	p.From = r.PathValue("from")
	booked, err := s.ledger.Debit(r.Context(), p)
	if err == nil && booked.GetDeclined() {
		http.Error(w, "insufficient funds", http.StatusForbidden)
		return
	}
	at("debited")
	if err == nil {
		err = send(r.Context(), message{Payment: p})
	}
	if err != nil {
		log.Print(err)
		http.Error(w, "not yet: try again", http.StatusServiceUnavailable)
		return
	}
	w.Header().Set("Location", r.URL.EscapedPath()+"/"+url.PathEscape(p.GetId()))
	w.WriteHeader(http.StatusAccepted)
}

// send hands request and lock over. The engine commits the message together with the answer.
func send(ctx context.Context, m message) error {
	tx, err := pgxstore.Tx(ctx)
	if err == nil {
		m.Claim, err = idempotency.HandOver(ctx, *keep)
	}
	if err == nil {
		m.Lock, err = core.HandOver(ctx, *keep)
	}
	at("handed over")
	if err == nil {
		_, err = tx.Exec(ctx, "INSERT INTO message (body) VALUES ($1)", m)
	}
	return err
}

// look answers a client that asks for its payment.
func (s *service) look(w http.ResponseWriter, r *http.Request) {
	progress, err := s.payments.Look(r.Context(), r.PathValue("from"), r.PathValue("id"))
	switch {
	case err != nil:
		http.Error(w, "not now", http.StatusServiceUnavailable)
	case progress.Answer != nil: // the 202, or the answer of the consumer
		w.WriteHeader(progress.Answer.Status)
		_, _ = w.Write(progress.Answer.Body)
	case progress.Stage == idempotency.StageInProgress:
		w.WriteHeader(http.StatusAccepted)
	default:
		http.Error(w, "no such payment: send it again", http.StatusNotFound)
	}
}

// within calls f with a time limit in place of the end of ctx.
func within(ctx context.Context, f func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 20*time.Second)
	defer cancel()
	return f(ctx)
}
