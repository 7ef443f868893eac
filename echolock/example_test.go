package echolock_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"net/http"
	"net/http/httptest"
	"strings"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/memstore"
	"github.com/interlock-go/interlock/core/reason"
	"github.com/interlock-go/interlock/echolock"
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
	handler := func(c echo.Context) error {
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

// One rule for several routes, and a handler that passes on the context, which ends when the
// lease is lost, and the fencing token.
func ExampleSerialize() {
	locker, err := core.New(memstore.New()) // in production: a redisstore
	if err != nil {
		log.Fatal(err)
	}
	defer locker.Close(context.Background())
	debit := core.Serialize(locker, "account/{id}")

	handler := func(c echo.Context) error {
		ctx := c.Request().Context()
		lease := core.LeaseFromContext(ctx)
		err := ledger.Debit(ctx, c.Param("id"), lease.Token())
		if err != nil {
			return err
		}
		return c.NoContent(http.StatusNoContent)
	}

	e := echo.New()
	e.POST("/accounts/:id/debit", handler, echolock.Guard(debit))
	account := e.Group("/accounts/:id", echolock.Guard(debit))
	account.POST("/credit", handler)
	account.POST("/close", handler)

	for _, path := range []string{"/accounts/42/debit", "/accounts/43/close"} {
		w := httptest.NewRecorder()
		e.ServeHTTP(w, httptest.NewRequest("POST", path, nil))
		fmt.Println(w.Code)
	}
	// Output:
	// debit 42 with a token: true
	// 204
	// debit 43 with a token: true
	// 204
}

// book stands for your database, which refuses tokens smaller than the greatest
// that it has seen.
type book struct{}

var ledger book

func (book) Debit(_ context.Context, account string, token int64) error {
	fmt.Println("debit", account, "with a token:", token > 0)
	return nil
}

// Requests that only read go through without the lock.
func ExampleConfig() {
	locker, err := core.New(memstore.New()) // in production: a redisstore
	if err != nil {
		log.Fatal(err)
	}
	defer locker.Close(context.Background())

	lock, err := echolock.Config{
		Guard:   core.Serialize(locker, "account/{id}"),
		Skipper: func(c echo.Context) bool { return c.Request().Method == http.MethodGet },
	}.ToMiddleware()
	if err != nil {
		log.Fatal(err)
	}

	e := echo.New()
	account := e.Group("/accounts/:id", lock)
	account.Any("", func(c echo.Context) error {
		return c.String(http.StatusOK, fmt.Sprint("locked: ", core.LeaseFromContext(c.Request().Context()) != nil))
	})

	for _, method := range []string{http.MethodGet, http.MethodPut} {
		w := httptest.NewRecorder()
		e.ServeHTTP(w, httptest.NewRequest(method, "/accounts/42", nil))
		fmt.Println(method, w.Body)
	}
	// Output:
	// GET locked: false
	// PUT locked: true
}

// An application's error handler sees refusals as all other errors, and answers
// as it likes.
func ExampleRefusalError() {
	locker, err := core.New(memstore.New()) // in production: a redisstore
	if err != nil {
		log.Fatal(err)
	}
	defer locker.Close(context.Background())

	e := echo.New()
	e.HTTPErrorHandler = func(err error, c echo.Context) {
		var refused *echolock.RefusalError
		if errors.As(err, &refused) && refused.Reason == reason.BadKey {
			_ = c.HTML(http.StatusForbidden, "<p>Please say for which tenant.</p>")
			return
		}
		e.DefaultHTTPErrorHandler(err, c)
	}
	report := core.Serialize(locker, "tenant/{header.X-Tenant}/report")
	e.GET("/report", func(echo.Context) error { return nil }, echolock.Guard(report))

	w := httptest.NewRecorder()
	e.ServeHTTP(w, httptest.NewRequest("GET", "/report", nil))
	fmt.Println(w.Code, strings.TrimSpace(w.Body.String()))
	// Output: 403 <p>Please say for which tenant.</p>
}
