package echolock_test

import (
	"context"
	"fmt"
	"log"
	"net/http"
	"net/http/httptest"
	"time"

	"github.com/labstack/echo/v5"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/idempotency"
	"github.com/interlock-go/interlock/core/memstore"
	"github.com/interlock-go/interlock/echolock/v5"
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
	handler := func(c *echo.Context) error {
		lease := core.LeaseFromContext(c.Request().Context())
		return c.String(http.StatusOK, "debited under the lock of "+lease.Key())
	}

	e := echo.New()
	e.POST("/accounts/:id/debit", handler, echolock.Guard(debit))

	w := httptest.NewRecorder()
	e.ServeHTTP(w, httptest.NewRequest("POST", "/accounts/42/debit", nil))
	fmt.Println(w.Code, w.Body)
	// Output: 200 debited under the lock of account/42
}

// A payment that is sent twice takes place once.
func ExampleIdempotent() {
	store := memstore.New() // in production: a redisstore
	engine, err := idempotency.New(store, idempotency.Scope(core.FromContext("user")))
	if err != nil {
		log.Fatal(err)
	}
	defer engine.Close(context.Background())

	payments := 0
	handler := func(c *echo.Context) error {
		payments++
		return c.String(http.StatusCreated, fmt.Sprint("payment ", payments))
	}

	e := echo.New()
	e.Use(func(next echo.HandlerFunc) echo.HandlerFunc {
		return func(c *echo.Context) error {
			c.Set("user", "alice") // your authentication
			return next(c)
		}
	})
	e.POST("/payments", handler, echolock.Idempotent(engine))

	for range 2 {
		req := httptest.NewRequest("POST", "/payments", nil)
		req.Header.Set("Idempotency-Key", "8e03978e-40d5-43e8-bc93-6894a57f9324")
		w := httptest.NewRecorder()
		e.ServeHTTP(w, req)
		fmt.Printf("%d %q, replayed: %q\n", w.Code, w.Body, w.Header().Get("Idempotent-Replayed"))
	}
	// Output:
	// 201 "payment 1", replayed: ""
	// 201 "payment 1", replayed: "true"
}
