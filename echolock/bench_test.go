package echolock_test

import (
	"context"
	"net/http"
	"testing"

	"github.com/labstack/echo/v4"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/echolock"
	"github.com/interlock-go/interlock/internal/testkit"
)

var router testkit.Router = func(lock *core.Guard, handle func(ctx context.Context) error) http.Handler {
	e := newEcho()
	var chain []echo.MiddlewareFunc
	if lock != nil {
		chain = append(chain, echolock.Guard(lock))
	}
	e.POST("/accounts/:id/debit", func(c echo.Context) error {
		if err := handle(c.Request().Context()); err != nil {
			return err
		}
		return c.NoContent(http.StatusNoContent)
	}, chain...)
	return e
}

func BenchmarkEcho(b *testing.B) { router.Benchmark(b) }

func TestMiddlewareStaysWithinItsAllocations(t *testing.T) { router.WantAllocations(t) }
