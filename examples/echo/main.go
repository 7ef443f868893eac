// Command echo is a complete service on echo v5, with echo's own authentication, gzip and
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
	"crypto/subtle"
	"net"
	"net/http"
	"strconv"

	"github.com/labstack/echo/v5"
	"github.com/labstack/echo/v5/middleware"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/idempotency"
	"github.com/interlock-go/interlock/echolock/v5"
	"github.com/interlock-go/interlock/examples/internal/bank"
	"github.com/interlock-go/interlock/examples/internal/service"
)

func main() { service.Main("localhost:8080", run) }

// run serves until the process receives a signal to stop.
func run(listener net.Listener, stop <-chan struct{}) error {
	parts, err := service.Open(core.FromContext("user"))
	if err != nil {
		return err
	}
	s := handlers{parts.Bank}
	debit := core.Serialize(parts.Locker, "account/{id:int}") // the handler parses a number, so 42 and 042 are one account
	e := echo.New()
	e.Use(middleware.Recover(), middleware.Gzip(), middleware.BasicAuth(authenticate))
	e.POST("/accounts/:id/debit", s.debit, echolock.Guard(debit))
	e.POST("/payments", s.pay, echolock.Idempotent(parts.Engine))
	return parts.ServeHTTP(listener, stop, e)
}

type handlers struct{ bank bank.Bank }

func (s handlers) debit(c *echo.Context) error {
	id, err := strconv.ParseInt(c.Param("id"), 10, 64)
	if err != nil {
		return echo.ErrNotFound
	}
	balance, err := s.bank.Debit(c.Request().Context(), strconv.FormatInt(id, 10))
	if err != nil {
		return echo.ErrServiceUnavailable.Wrap(err)
	}
	return c.JSON(http.StatusOK, balance)
}

func (s handlers) pay(c *echo.Context) error {
	ctx := c.Request().Context()
	// After the mark, no request repeats the payment, even if this process dies.
	if err := idempotency.MarkEffect(ctx); err != nil {
		return echo.ErrServiceUnavailable.Wrap(err)
	}
	if err := s.bank.Pay(ctx, c.Get("user").(string)); err != nil {
		return echo.ErrBadGateway.Wrap(err)
	}
	return c.String(http.StatusCreated, "paid")
}

func authenticate(c *echo.Context, user, password string) (bool, error) {
	c.Set("user", user)
	return subtle.ConstantTimeCompare([]byte(password), []byte("secret")) == 1, nil
}
