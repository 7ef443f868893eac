package ginlock_test

import (
	"context"
	"fmt"
	"log"
	"net/http"
	"net/http/httptest"
	"time"

	"github.com/gin-gonic/gin"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/memstore"
	"github.com/interlock-go/interlock/core/reason"
	"github.com/interlock-go/interlock/ginlock"
)

// One line makes the debits of an account run one after the other, in
// all processes.
func Example() {
	locker, err := core.New(memstore.New()) // in production: a redisstore
	if err != nil {
		log.Fatal(err)
	}
	defer locker.Close(context.Background())

	debit := core.Serialize(locker, "account/{id}", core.Wait(time.Second))

	r := gin.New()
	r.POST("/accounts/:id/debit", ginlock.Guard(debit), func(c *gin.Context) {
		lease := core.LeaseFromContext(c.Request.Context())
		c.String(http.StatusOK, "debited under the lock of %s", lease.Key())
	})

	w := httptest.NewRecorder()
	r.ServeHTTP(w, httptest.NewRequest("POST", "/accounts/42/debit", nil))
	fmt.Println(w.Code, w.Body)
	// Output: 200 debited under the lock of account/42
}

// One rule for several routes, and a handler that passes on the context, which ends when the
// lease is lost, and the fencing token.
func ExampleSerialize() {
	locker, err := core.New(memstore.New()) // in production: a redisstore
	if err != nil {
		log.Fatal(err)
	}
	defer locker.Close(context.Background())
	debit := core.Serialize(locker, "account/{id}")

	handler := func(c *gin.Context) {
		ctx := c.Request.Context()
		lease := core.LeaseFromContext(ctx)
		err := ledger.Debit(ctx, c.Param("id"), lease.Token())
		if err != nil {
			_ = c.AbortWithError(http.StatusInternalServerError, err)
		}
	}

	r := gin.New()
	r.UseRawPath = true
	r.POST("/accounts/:id/debit", ginlock.Guard(debit), handler)
	account := r.Group("/accounts/:id", ginlock.Guard(debit))
	account.POST("/credit", handler)
	account.POST("/close", handler)

	for _, path := range []string{"/accounts/42/debit", "/accounts/a%2Fb/close"} {
		w := httptest.NewRecorder()
		r.ServeHTTP(w, httptest.NewRequest("POST", path, nil))
		fmt.Println(w.Code)
	}
	// Output:
	// debit 42 with a token: true
	// 200
	// debit a/b with a token: true
	// 200
}

// book stands for your database, which refuses tokens smaller than the greatest
// that it has seen.
type book struct{}

var ledger book

func (book) Debit(_ context.Context, account string, token int64) error {
	fmt.Println("debit", account, "with a token:", token > 0)
	return nil
}

// An application with its own error answers replaces the lock's, and leaves the others to
// Problem.
func ExampleRender() {
	locker, err := core.New(memstore.New()) // in production: a redisstore
	if err != nil {
		log.Fatal(err)
	}
	defer locker.Close(context.Background())

	report := core.Serialize(locker, "tenant/{header.X-Tenant}/report")
	render := ginlock.Render(func(c *gin.Context, refusal *core.Refusal) {
		if refusal.Reason == reason.BadKey {
			c.JSON(http.StatusForbidden, gin.H{"error": "Please say for which tenant."})
			return
		}
		ginlock.Problem(c, refusal)
	})

	r := gin.New()
	r.GET("/report", ginlock.Guard(report, render), func(*gin.Context) {})

	w := httptest.NewRecorder()
	r.ServeHTTP(w, httptest.NewRequest("GET", "/report", nil))
	fmt.Println(w.Code, w.Body)
	// Output: 403 {"error":"Please say for which tenant."}
}
