package ginlock_test

import (
	"context"
	"net/http"
	"testing"
	"time"

	"github.com/gin-gonic/gin"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/ginlock"
	"github.com/interlock-go/interlock/internal/adaptertest"
	"github.com/interlock-go/interlock/internal/adaptertest/freestore"
)

func answerOK(c *gin.Context) { c.Status(http.StatusNoContent) }

// answerUnderContext is a handler that also uses its context, as one that asks a
// database does: the lease's context is then made in full.
func answerUnderContext(c *gin.Context) {
	ctx, cancel := context.WithTimeout(c.Request.Context(), time.Minute)
	defer cancel()
	if ctx.Err() == nil {
		c.Status(http.StatusNoContent)
	}
}

func engines(tb testing.TB, h gin.HandlerFunc) adaptertest.Pair {
	tb.Helper()
	locker := freestore.Locker(tb)
	guard := core.Serialize(locker, "account/{id}")
	bare, locked := gin.New(), gin.New()
	bare.POST("/accounts/:id/debit", h)
	locked.POST("/accounts/:id/debit", ginlock.Serialize(guard), h)
	return adaptertest.Pair{Bare: bare, Locked: locked}
}

func BenchmarkGin(b *testing.B) {
	engines(b, answerOK).Benchmark(b, "")
	engines(b, answerUnderContext).Benchmark(b, "-context")
}

func TestMiddlewareStaysWithinItsAllocations(t *testing.T) {
	engines(t, answerOK).AtMost(t, 16)
	// A child of the lease's context costs the standard library's machinery.
	engines(t, answerUnderContext).AtMost(t, 20)
}
