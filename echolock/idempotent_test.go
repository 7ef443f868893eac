package echolock_test

import (
	"net/http"
	"testing"

	"github.com/labstack/echo/v4"

	"github.com/interlock-go/interlock/echolock"
	"github.com/interlock-go/interlock/internal/idemtest"
)

func serveIdempotent(_ testing.TB, e *idemtest.Endpoint) http.Handler {
	r := echo.New()
	r.Any("/accounts/:id/payments", func(c echo.Context) error {
		e.ServeHTTP(c.Response(), c.Request(), c.Param("id"))
		return nil
	}, echolock.Idempotent(e.Engine))
	return r
}

func TestIdempotent(t *testing.T) { idemtest.RunHTTP(t, serveIdempotent) }
