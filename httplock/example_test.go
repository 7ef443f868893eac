package httplock_test

import (
	"context"
	"fmt"
	"log"
	"net/http"
	"net/http/httptest"
	"time"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/memstore"
	"github.com/interlock-go/interlock/core/reason"
	"github.com/interlock-go/interlock/httplock"
)

// One line makes the debits of an account run one after the other, in
// all processes.
func Example() {
	locker, err := core.New(memstore.New()) // in production: a redisstore
	if err != nil {
		log.Fatal(err)
	}
	defer locker.Close(context.Background())

	debit := core.Serialize(locker, "account/{id}", core.Wait(time.Second))
	handler := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		lease := core.LeaseFromContext(r.Context())
		fmt.Println("debiting under the lock of", lease.Key())
		w.WriteHeader(http.StatusNoContent)
	})

	mux := http.NewServeMux()
	mux.Handle("POST /accounts/{id}/debit", httplock.Guard(debit)(handler))

	w := httptest.NewRecorder()
	mux.ServeHTTP(w, httptest.NewRequest("POST", "/accounts/42/debit", nil))
	fmt.Println(w.Code)
	// Output:
	// debiting under the lock of account/42
	// 204
}

// An application with its own error pages replaces all answers of the lock at once, and
// leaves the others to Problem.
func ExampleRender() {
	locker, err := core.New(memstore.New())
	if err != nil {
		log.Fatal(err)
	}
	defer locker.Close(context.Background())

	report := core.Serialize(locker, "tenant/{header.X-Tenant}/report")
	handler := http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})
	render := httplock.Render(func(w http.ResponseWriter, r *http.Request, refusal *core.Refusal) {
		if refusal.Reason == reason.BadKey {
			http.Error(w, "Please say for which tenant.", http.StatusForbidden)
			return
		}
		httplock.Problem(w, r, refusal)
	})

	w := httptest.NewRecorder()
	httplock.Guard(report, render)(handler).ServeHTTP(w, httptest.NewRequest("GET", "/report", nil))
	fmt.Println(w.Code, w.Body)
	// Output: 403 Please say for which tenant.
}
