package ginlock_test

import (
	"net/http"
	"testing"

	"github.com/gin-gonic/gin"

	"github.com/interlock-go/interlock/ginlock"
	"github.com/interlock-go/interlock/internal/testkit"
)

// HandleContext takes the middleware's writer away. The response cannot be replayed, and a
// retry must get neither an empty success nor a second effect.
func TestAResponsePastTheMiddlewareIsNotReplayed(t *testing.T) {
	r, runs := gin.New(), 0
	r.POST("/", ginlock.Idempotent(testkit.Engine(t)), func(c *gin.Context) {
		runs++
		c.Request.URL.Path = "/other"
		r.HandleContext(c)
	})
	r.POST("/other", func(c *gin.Context) { c.String(http.StatusCreated, "paid") })
	srv := testkit.Serve(t, r)
	testkit.Post(t, srv, "/").WantOwn(t, http.StatusCreated, "paid")
	testkit.Post(t, srv, "/").WantProblem(t, http.StatusConflict, "idempotency-response-unavailable", "")
	if runs != 1 {
		t.Errorf("the handler ran %d times", runs)
	}
}
