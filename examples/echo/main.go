// Command echo is a complete service on echo v5, with echo's own authentication, gzip and
// recovery, time limits and a graceful end. Debits of one account run one after the
// other. A payment is made once, even if the client sends it several times. Two
// processes on one Redis, with different -addr, serve one bank.
// examples/production has metrics, traces, a debug page and readiness as well.
//
//	curl -u alice:secret -X POST localhost:8080/accounts/42/debit
//	curl -u alice:secret -X POST localhost:8080/payments -H 'Idempotency-Key: k1'
package main

import (
	"context"
	"crypto/subtle"
	"errors"
	"flag"
	"log"
	"net"
	"net/http"
	"os"
	"os/signal"
	"strconv"
	"syscall"
	"time"

	"github.com/labstack/echo/v5"
	"github.com/labstack/echo/v5/middleware"
	"github.com/redis/go-redis/v9"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/idempotency"
	"github.com/interlock-go/interlock/core/redisstore"
	"github.com/interlock-go/interlock/echolock/v5"
	"github.com/interlock-go/interlock/examples/internal/bank"
)

var (
	addr      = flag.String("addr", "localhost:8080", "where to listen")
	redisAddr = flag.String("redis", "localhost:6379", "Redis to use")
	lease     = flag.Duration("lease", 30*time.Second, "how long a process that died keeps others waiting")
	limit     = flag.Duration("limit", 10*time.Second, "how long a client waits for its answer")
	work      = flag.Duration("work", 0, "how long the bank thinks about each request")
)

func main() {
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	listener, err := net.Listen("tcp", *addr)
	if err != nil {
		log.Fatal(err)
	}
	if err := run(listener, ctx.Done()); err != nil {
		log.Fatal(err)
	}
}

// run serves until the process receives a signal to stop.
func run(listener net.Listener, stop <-chan struct{}) error {
	rdb := redis.NewClient(&redis.Options{Addr: *redisAddr, ContextTimeoutEnabled: true, MaxRetries: -1})
	store, err := redisstore.New(rdb)
	if err != nil {
		return err
	}
	locker, err := core.New(store, core.Watchdog(*lease))
	if err != nil {
		return err
	}
	engine, err := idempotency.New(store, idempotency.Lease(*lease), idempotency.Scope(core.FromContext("user")))
	if err != nil {
		return err
	}

	s := service{bank.Bank{Redis: rdb, Work: *work}}
	debit := core.Serialize(locker, "account/{id:int}") // the handler parses a number, so 42 and 042 are one account
	e := echo.New()
	e.Use(middleware.Recover(), middleware.Gzip(), middleware.BasicAuth(authenticate))
	e.POST("/accounts/:id/debit", s.debit, echolock.Guard(debit))
	e.POST("/payments", s.pay, echolock.Idempotent(engine))

	// The lock is inside the time limit: a handler that continues after the limit
	// keeps its lock.
	server := &http.Server{
		Handler:      http.TimeoutHandler(e, *limit, "too slow"),
		ReadTimeout:  *limit,
		WriteTimeout: 2 * *limit,
	}
	failed := make(chan error, 1)
	go func() { failed <- server.Serve(listener) }()
	select {
	case err = <-failed:
	case <-stop:
	}
	return errors.Join(err, // in this order, each with a time limit of its own
		within(2**limit, server.Shutdown),
		within(time.Minute, engine.Close),
		within(*limit, locker.Close),
		store.Close(),
		rdb.Close())
}

// within calls f with a context that ends after that time.
func within(d time.Duration, f func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(context.Background(), d)
	defer cancel()
	return f(ctx)
}

type service struct{ bank bank.Bank }

func (s service) debit(c *echo.Context) error {
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

func (s service) pay(c *echo.Context) error {
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
