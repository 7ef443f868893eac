package ginlock_test

import (
	"context"
	"net/http"
	"testing"

	"github.com/gin-gonic/gin"

	"github.com/interlock-go/interlock/core/idempotency"
	"github.com/interlock-go/interlock/core/memstore"
	"github.com/interlock-go/interlock/ginlock"
	"github.com/interlock-go/interlock/internal/adaptertest"
)

func memoryEngine(t *testing.T) *idempotency.Engine {
	t.Helper()
	engine, err := idempotency.New(memstore.New(), idempotency.Global())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = engine.Close(context.Background()) })
	return engine
}

// HandleContext takes the middleware's writer away. The response cannot be replayed, and a
// retry must get neither an empty success nor a second effect.
func TestAResponsePastTheMiddlewareIsNotReplayed(t *testing.T) {
	r, runs := gin.New(), 0
	r.POST("/", ginlock.Idempotent(memoryEngine(t)), func(c *gin.Context) {
		runs++
		c.Request.URL.Path = "/other"
		r.HandleContext(c)
	})
	r.POST("/other", func(c *gin.Context) { c.String(http.StatusCreated, "paid") })
	srv := adaptertest.Serve(t, r)
	adaptertest.Post(t, srv, "/").WantOwn(t, http.StatusCreated, "paid")
	adaptertest.Post(t, srv, "/").WantProblem(t, http.StatusConflict, "idempotency-response-unavailable", "")
	if runs != 1 {
		t.Errorf("the handler ran %d times", runs)
	}
}

// An informational status is not the answer: net/http implies 200 after it.
func TestAnInformationalStatusIsNotStored(t *testing.T) {
	r := gin.New()
	r.POST("/", ginlock.Idempotent(memoryEngine(t)), func(c *gin.Context) {
		c.Status(http.StatusEarlyHints)
		c.Writer.WriteHeaderNow()
	})
	srv := adaptertest.Serve(t, r)
	adaptertest.Post(t, srv, "/").WantOwn(t, http.StatusOK, "")
	adaptertest.Post(t, srv, "/").WantReplay(t, http.StatusOK, "")
}
