package httplock_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"net/http"
	"net/http/httptest"
	"strings"
	"time"

	"github.com/interlock-go/interlock/core/idempotency"
	"github.com/interlock-go/interlock/core/memstore"
	"github.com/interlock-go/interlock/httplock"
)

// The first response is lost. The client sends the payment again by itself, with the same
// key, and gets the answer of the first request.
func ExampleTransport() {
	engine, err := idempotency.New(memstore.New(), idempotency.Global())
	if err != nil {
		log.Fatal(err)
	}
	defer engine.Close(context.Background())
	pay := httplock.Idempotent(engine)(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		fmt.Println("paying")
		w.WriteHeader(http.StatusCreated)
	}))
	first := true
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if first {
			first = false
			pay.ServeHTTP(httptest.NewRecorder(), r)
			panic(http.ErrAbortHandler) // the connection breaks
		}
		pay.ServeHTTP(w, r)
	}))
	defer server.Close()

	client := &http.Client{Transport: &httplock.Transport{
		OnTry: func(try httplock.Try) { fmt.Println("try", try.Number, "status", try.Status) },
	}}
	// The key of the order's payment is the same after a crash of this process. Without it,
	// each request has its own key.
	ctx := idempotency.WithKey(context.Background(), "order-17/payment")
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, server.URL, strings.NewReader(`{"amount":100}`))
	if err != nil {
		log.Fatal(err)
	}
	response, err := client.Do(request)
	switch {
	case errors.Is(err, idempotency.ErrOutcomeUnknown):
		fmt.Println("ask again later, with the same key")
	case err != nil:
		fmt.Println("not paid:", err)
	default:
		_ = response.Body.Close()
		fmt.Println(response.StatusCode, "replayed:", response.Header.Get("Idempotent-Replayed"))
	}
	// Output:
	// paying
	// try 1 status 0
	// try 2 status 201
	// 201 replayed: true
}
