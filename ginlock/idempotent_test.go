package ginlock_test

import (
	"net/http"
	"testing"

	"github.com/gin-gonic/gin"

	"github.com/interlock-go/interlock/ginlock"
	"github.com/interlock-go/interlock/internal/idemtest"
)

func serveIdempotent(_ testing.TB, e *idemtest.Endpoint) http.Handler {
	r := gin.New()
	r.UseRawPath = true
	r.Any("/accounts/:id/payments", ginlock.Idempotent(e.Engine), func(c *gin.Context) {
		e.ServeHTTP(c.Writer, c.Request, c.Param("id"))
	})
	return r
}

func TestIdempotent(t *testing.T) { idemtest.RunHTTP(t, serveIdempotent) }
