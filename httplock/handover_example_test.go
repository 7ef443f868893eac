package httplock_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log"
	"net/http"
	"net/http/httptest"
	"time"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/idempotency"
	"github.com/interlock-go/interlock/core/idempotency/endpoint"
	"github.com/interlock-go/interlock/core/memstore"
	"github.com/interlock-go/interlock/httplock"
)

// A handler answers 202 and hands its request over. Retries get that answer until a worker has
// stored the final one. The client polls the Location.
func ExampleIdempotent_handOver() {
	store := memstore.New() // in production: a redisstore, or a pgstore
	engine, err := idempotency.New(store, idempotency.Scope(core.FromContext(userKey{})))
	if err != nil {
		log.Fatal(err)
	}
	defer engine.Close(context.Background())
	pay := func(ctx context.Context, amount int) error {
		if err := idempotency.MarkEffect(ctx); err != nil {
			return err
		}
		return bank.Pay(ctx, idempotency.DownstreamKey(ctx), amount)
	}

	type message struct {
		Ticket idempotency.Ticket
		Amount int
	}
	queue := make(chan []byte, 8)
	accept := func(w http.ResponseWriter, r *http.Request) {
		ticket, err := idempotency.HandOver(r.Context(), time.Hour)
		if err != nil {
			http.Error(w, "not now", http.StatusServiceUnavailable)
			return
		}
		sent, err := json.Marshal(message{ticket, 100})
		if err != nil {
			http.Error(w, "no message", http.StatusInternalServerError) // takes the ticket back
			return
		}
		queue <- sent
		w.Header().Set("Location", "/payments/"+r.Header.Get(idempotency.KeyHeader))
		w.Header().Set("Retry-After", "2")
		w.WriteHeader(http.StatusAccepted)
	}
	progress := func(w http.ResponseWriter, r *http.Request) {
		user, _ := r.Context().Value(userKey{}).(string)
		p, err := engine.Look(r.Context(), user, r.PathValue("key"))
		if err != nil {
			http.Error(w, "not now", http.StatusServiceUnavailable)
			return
		}
		_, _ = fmt.Fprint(w, p.Stage)
	}
	// consume returns nil for a message that is done with.
	consume := func(ctx context.Context, sent []byte) error {
		var m message
		if err := json.Unmarshal(sent, &m); err != nil {
			return err
		}
		ticket, amount := m.Ticket, m.Amount
		err := engine.TakeOver(ctx, ticket, func(ctx context.Context) (endpoint.Response, error) {
			return endpoint.Response{Status: 201}, pay(ctx, amount) // as in a handler
		})
		if errors.Is(err, idempotency.ErrTicketFinished) || errors.Is(err, idempotency.ErrTicketRanOut) {
			return nil
		}
		return err
	}

	mux := http.NewServeMux()
	mux.Handle("POST /payments", httplock.Idempotent(engine)(http.HandlerFunc(accept)))
	mux.HandleFunc("GET /payments/{key}", progress)
	server := authenticate(mux)
	send := func(method, path string) {
		r := httptest.NewRequest(method, path, nil)
		r.SetBasicAuth("alice", "")
		r.Header.Set(idempotency.KeyHeader, "order-17")
		w := httptest.NewRecorder()
		server.ServeHTTP(w, r)
		fmt.Printf("%s: %d, interim: %q, body: %q\n", method, w.Code, w.Header().Get(idempotency.InterimHeader), w.Body)
	}
	send("POST", "/payments")
	send("POST", "/payments")
	send("GET", "/payments/order-17")
	sent := <-queue
	for range 2 { // the broker delivers it again
		if err := consume(context.Background(), sent); err != nil {
			log.Fatal(err)
		}
	}
	send("POST", "/payments")
	send("GET", "/payments/order-17")
	// Output:
	// POST: 202, interim: "", body: ""
	// POST: 202, interim: "true", body: ""
	// GET: 200, interim: "", body: "in progress"
	// paying 100 with a key of 36 characters
	// POST: 201, interim: "", body: ""
	// GET: 200, interim: "", body: "finished"
}
