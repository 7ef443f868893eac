package echolock_test

import (
	"context"
	"net/http"
	"testing"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/echolock"
	"github.com/interlock-go/interlock/internal/adaptertest"
	"github.com/interlock-go/interlock/internal/adaptertest/freestore"
)

func answerOK(c echo.Context) error { return c.NoContent(http.StatusNoContent) }

// answerUnderContext is a handler that also uses its context, as one that asks a
// database does: the lease's context is then made in full.
func answerUnderContext(c echo.Context) error {
	ctx, cancel := context.WithTimeout(c.Request().Context(), time.Minute)
	defer cancel()
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return c.NoContent(http.StatusNoContent)
}

func applications(tb testing.TB, h echo.HandlerFunc) adaptertest.Pair {
	tb.Helper()
	locker := freestore.Locker(tb)
	guard := core.Serialize(locker, "account/{id}")
	bare, locked := newEcho(), newEcho()
	bare.POST("/accounts/:id/debit", h)
	locked.POST("/accounts/:id/debit", h, echolock.Serialize(guard))
	return adaptertest.Pair{Bare: bare, Locked: locked}
}

func BenchmarkEcho(b *testing.B) {
	applications(b, answerOK).Benchmark(b, "")
	applications(b, answerUnderContext).Benchmark(b, "-context")
}

func TestMiddlewareStaysWithinItsAllocations(t *testing.T) {
	applications(t, answerOK).AtMost(t, 16)
	// A child of the lease's context costs the standard library's machinery.
	applications(t, answerUnderContext).AtMost(t, 20)
}
