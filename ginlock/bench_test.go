package ginlock_test

import (
	"context"
	"net/http"
	"testing"

	"github.com/gin-gonic/gin"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/ginlock"
	"github.com/interlock-go/interlock/internal/testkit"
)

var router testkit.Router = func(lock *core.Guard, handle func(ctx context.Context) error) http.Handler {
	r := gin.New()
	if lock != nil {
		r.Use(ginlock.Guard(lock))
	}
	r.POST("/accounts/:id/debit", func(c *gin.Context) {
		if handle(c.Request.Context()) == nil {
			c.Status(http.StatusNoContent)
		}
	})
	return r
}

func BenchmarkGin(b *testing.B) { router.Benchmark(b) }

func TestMiddlewareStaysWithinItsAllocations(t *testing.T) { router.WantAllocations(t) }
