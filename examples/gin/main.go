// Command gin is a complete service on gin, with gin's own authentication and
// recovery, time limits and a graceful end. Debits of one account run one after the
// other. A payment is made once, even if the client sends it several times. Two
// processes on one Redis, with different -addr, serve one bank.
// examples/internal/service connects and closes it; examples/production has metrics, traces, a
// debug page and readiness as well.
//
//	curl -u alice:secret -X POST localhost:8080/accounts/42/debit
//	curl -u alice:secret -X POST localhost:8080/payments -H 'Idempotency-Key: k1'
package main

import (
	"net"
	"net/http"
	"strconv"

	"github.com/gin-gonic/gin"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/idempotency"
	"github.com/interlock-go/interlock/examples/internal/bank"
	"github.com/interlock-go/interlock/examples/internal/service"
	"github.com/interlock-go/interlock/ginlock"
)

func main() { service.Main("localhost:8080", run) }

// run serves until the process receives a signal to stop.
func run(listener net.Listener, stop <-chan struct{}) error {
	parts, err := service.Open(core.FromContext(gin.AuthUserKey))
	if err != nil {
		return err
	}
	s := handlers{parts.Bank}
	debit := core.Serialize(parts.Locker, "account/{id:int}") // the handler parses a number, so 42 and 042 are one account
	r := gin.New()
	r.Use(gin.Recovery(), gin.BasicAuth(gin.Accounts{"alice": "secret", "bob": "secret"}))
	r.POST("/accounts/:id/debit", ginlock.Guard(debit), s.debit)
	r.POST("/payments", ginlock.Idempotent(parts.Engine), s.pay)
	return parts.ServeHTTP(listener, stop, r)
}

type handlers struct{ bank bank.Bank }

func (s handlers) debit(c *gin.Context) {
	id, err := strconv.ParseInt(c.Param("id"), 10, 64)
	if err != nil {
		_ = c.AbortWithError(http.StatusNotFound, err)
		return
	}
	balance, err := s.bank.Debit(c.Request.Context(), strconv.FormatInt(id, 10))
	if err != nil {
		_ = c.AbortWithError(http.StatusServiceUnavailable, err)
		return
	}
	c.JSON(http.StatusOK, balance)
}

func (s handlers) pay(c *gin.Context) {
	ctx := c.Request.Context()
	// After the mark, no request repeats the payment, even if this process dies.
	if err := idempotency.MarkEffect(ctx); err != nil {
		_ = c.AbortWithError(http.StatusServiceUnavailable, err)
		return
	}
	if err := s.bank.Pay(ctx, c.GetString(gin.AuthUserKey)); err != nil {
		_ = c.AbortWithError(http.StatusBadGateway, err)
		return
	}
	c.String(http.StatusCreated, "paid")
}
