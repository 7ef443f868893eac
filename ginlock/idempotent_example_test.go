package ginlock_test

import (
	"context"
	"fmt"
	"log"
	"net/http"
	"net/http/httptest"

	"github.com/gin-gonic/gin"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/idempotency"
	"github.com/interlock-go/interlock/core/memstore"
	"github.com/interlock-go/interlock/ginlock"
)

// house stands for the service that moves the money. It knows payments by their
// keys.
type house struct{}

var bank house

func (house) Pay(_ context.Context, key string, amount int) error {
	fmt.Printf("paying %d with a key of %d characters\n", amount, len(key))
	return nil
}

// A payment that is sent twice takes place once.
func ExampleIdempotent() {
	store := memstore.New() // in production: a redisstore
	engine, err := idempotency.New(store, idempotency.Scope(core.FromContext(gin.AuthUserKey)))
	if err != nil {
		log.Fatal(err)
	}
	defer engine.Close(context.Background())

	handler := func(c *gin.Context) {
		ctx := c.Request.Context()
		if err := idempotency.MarkEffect(ctx); err != nil {
			_ = c.AbortWithError(http.StatusServiceUnavailable, err)
			return
		}
		err := bank.Pay(ctx, idempotency.DownstreamKey(ctx), 100)
		if err != nil {
			_ = c.AbortWithError(http.StatusInternalServerError, err)
			return
		}
		c.String(http.StatusCreated, "paid")
	}

	r := gin.New()
	r.Use(gin.BasicAuth(gin.Accounts{"alice": "secret"}))
	r.POST("/payments", ginlock.Idempotent(engine), handler)

	for range 2 {
		req := httptest.NewRequest("POST", "/payments", nil)
		req.SetBasicAuth("alice", "secret")
		req.Header.Set("Idempotency-Key", "8e03978e-40d5-43e8-bc93-6894a57f9324")
		w := httptest.NewRecorder()
		r.ServeHTTP(w, req)
		fmt.Printf("%d %q, replayed: %q\n", w.Code, w.Body, w.Header().Get("Idempotent-Replayed"))
	}
	// Output:
	// paying 100 with a key of 36 characters
	// 201 "paid", replayed: ""
	// 201 "paid", replayed: "true"
}
