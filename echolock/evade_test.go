package echolock_test

import (
	"net/http"
	"testing"

	"github.com/labstack/echo/v4"

	"github.com/interlock-go/interlock/echolock"
	"github.com/interlock-go/interlock/internal/testkit"
)

// An informational status is not the answer: net/http implies 200 after it.
func TestAnInformationalStatusIsNotStored(t *testing.T) {
	e := echo.New()
	e.POST("/", func(c echo.Context) error {
		c.Response().WriteHeader(http.StatusEarlyHints)
		return nil
	}, echolock.Idempotent(testkit.Engine(t)))
	srv := testkit.Serve(t, e)
	testkit.Post(t, srv, "/").WantOwn(t, http.StatusOK, "")
	testkit.Post(t, srv, "/").WantReplay(t, http.StatusOK, "")
}

// A handler that keeps the outer response, and writes to it, evades the middleware.
func TestAResponsePastTheMiddlewareIsNotReplayed(t *testing.T) {
	e, runs := echo.New(), 0
	e.POST("/", func(c echo.Context) error {
		runs++
		outer, _ := c.Get("outer").(*echo.Response)
		outer.WriteHeader(http.StatusCreated)
		_, err := outer.Write([]byte("paid"))
		return err
	}, func(next echo.HandlerFunc) echo.HandlerFunc {
		return func(c echo.Context) error {
			c.Set("outer", c.Response())
			return next(c)
		}
	}, echolock.Idempotent(testkit.Engine(t)))
	srv := testkit.Serve(t, e)
	testkit.Post(t, srv, "/").WantOwn(t, http.StatusCreated, "paid")
	testkit.Post(t, srv, "/").WantProblem(t, http.StatusConflict, "idempotency-response-unavailable", "")
	if runs != 1 {
		t.Errorf("the handler ran %d times", runs)
	}
}
