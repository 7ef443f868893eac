package echolock_test

import (
	"context"
	"fmt"
	"log"
	"net/http"
	"net/http/httptest"

	"github.com/labstack/echo/v4"
	"github.com/labstack/echo/v4/middleware"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/idempotency"
	"github.com/interlock-go/interlock/core/memstore"
	"github.com/interlock-go/interlock/echolock"
)

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
	engine, err := idempotency.New(store, idempotency.Scope(core.FromContext("user")))
	if err != nil {
		log.Fatal(err)
	}
	defer engine.Close(context.Background())

	handler := func(c echo.Context) error {
		ctx := c.Request().Context()
		if err := idempotency.MarkEffect(ctx); err != nil {
			return echo.NewHTTPError(http.StatusServiceUnavailable).SetInternal(err)
		}
		err := bank.Pay(ctx, idempotency.DownstreamKey(ctx), 100)
		if err != nil {
			return err
		}
		return c.String(http.StatusCreated, "paid")
	}

	e := echo.New()
	e.Use(middleware.BasicAuth(func(name, password string, c echo.Context) (bool, error) {
		c.Set("user", name)
		return password == "secret", nil
	}))
	e.POST("/payments", handler, echolock.Idempotent(engine))

	for range 2 {
		req := httptest.NewRequest("POST", "/payments", nil)
		req.SetBasicAuth("alice", "secret")
		req.Header.Set("Idempotency-Key", "8e03978e-40d5-43e8-bc93-6894a57f9324")
		w := httptest.NewRecorder()
		e.ServeHTTP(w, req)
		fmt.Printf("%d %q, replayed: %q\n", w.Code, w.Body, w.Header().Get("Idempotent-Replayed"))
	}
	// Output:
	// paying 100 with a key of 36 characters
	// 201 "paid", replayed: ""
	// 201 "paid", replayed: "true"
}
