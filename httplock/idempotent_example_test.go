package httplock_test

import (
	"context"
	"fmt"
	"log"
	"net/http"
	"net/http/httptest"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/idempotency"
	"github.com/interlock-go/interlock/core/memstore"
	"github.com/interlock-go/interlock/httplock"
)

// userKey is where authentication leaves the user.
type userKey struct{}

func authenticate(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		name, _, ok := r.BasicAuth() // in earnest: look at the password too
		if !ok {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		next.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), userKey{}, name)))
	})
}

// house stands for the service that moves the money. It knows payments by their
// keys.
type house struct{}

var bank house

func (house) Pay(_ context.Context, key string, amount int) error {
	fmt.Printf("paying %d with a key of %d characters\n", amount, len(key))
	return nil
}

// A payment that is sent twice takes place once.
func ExampleIdempotent() {
	store := memstore.New() // in production: a redisstore
	engine, err := idempotency.New(store, idempotency.Scope(core.FromContext(userKey{})))
	if err != nil {
		log.Fatal(err)
	}
	defer engine.Close(context.Background())

	handler := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ctx := r.Context()
		if err := idempotency.MarkEffect(ctx); err != nil {
			http.Error(w, "not now", http.StatusServiceUnavailable)
			return
		}
		err := bank.Pay(ctx, idempotency.DownstreamKey(ctx), 100)
		if err != nil {
			http.Error(w, "the bank has failed", http.StatusInternalServerError)
			return
		}
		w.WriteHeader(http.StatusCreated)
		fmt.Fprintln(w, "paid")
	})

	mux := http.NewServeMux()
	mux.Handle("POST /payments", httplock.Idempotent(engine)(handler))

	for range 2 {
		r := httptest.NewRequest("POST", "/payments", nil)
		r.SetBasicAuth("alice", "secret")
		r.Header.Set("Idempotency-Key", "8e03978e-40d5-43e8-bc93-6894a57f9324")
		w := httptest.NewRecorder()
		authenticate(mux).ServeHTTP(w, r)
		fmt.Printf("%d %q, replayed: %q\n", w.Code, w.Body, w.Header().Get("Idempotent-Replayed"))
	}
	// Output:
	// paying 100 with a key of 36 characters
	// 201 "paid\n", replayed: ""
	// 201 "paid\n", replayed: "true"
}

// One middleware for both: payments with the same key happen once, and payments of
// an account one after the other.
func ExampleIdempotent_under() {
	store := memstore.New() // in production: a redisstore
	locker, err := core.New(store)
	if err != nil {
		log.Fatal(err)
	}
	defer locker.Close(context.Background())
	engine, err := idempotency.New(store, idempotency.Global())
	if err != nil {
		log.Fatal(err)
	}
	defer engine.Close(context.Background())

	handler := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintln(w, "under the lock of", core.LeaseFromContext(r.Context()).Key())
	})
	mux := http.NewServeMux()
	debit := idempotency.Under(core.Serialize(locker, "account/{id}"))
	mux.Handle("POST /accounts/{id}/debit", httplock.Idempotent(engine.With(debit))(handler))

	for _, path := range []string{"/accounts/42/debit", "/accounts/42/debit", "/accounts/43/debit"} {
		r := httptest.NewRequest("POST", path, nil)
		r.Header.Set("Idempotency-Key", "k")
		w := httptest.NewRecorder()
		mux.ServeHTTP(w, r)
		fmt.Printf("%d, replayed: %q\n", w.Code, w.Header().Get("Idempotent-Replayed"))
	}
	// Output:
	// 200, replayed: ""
	// 200, replayed: "true"
	// 422, replayed: ""
}
