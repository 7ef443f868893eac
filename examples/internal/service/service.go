// Package service is the part that the example services have in common: the connection to Redis,
// time limits, and the order of the shutdown. To begin a new service, copy it with one of them.
package service

import (
	"context"
	"errors"
	"flag"
	"log"
	"net"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/idempotency"
	"github.com/interlock-go/interlock/core/redisstore"
	"github.com/interlock-go/interlock/examples/internal/bank"
)

var (
	redisAddr = flag.String("redis", "localhost:6379", "Redis to use")
	lease     = flag.Duration("lease", 30*time.Second, "how long a process that died keeps others waiting")
	work      = flag.Duration("work", 0, "how long the bank thinks about each request")
	// Limit bounds each request.
	Limit = flag.Duration("limit", 10*time.Second, "how long a client waits for its answer")
)

// Main runs a service until the process receives a signal to stop.
func Main(addr string, run func(listener net.Listener, stop <-chan struct{}) error) {
	flag.StringVar(&addr, "addr", addr, "where to listen")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	listener, err := net.Listen("tcp", addr)
	if err != nil {
		log.Fatal(err)
	}
	if err := run(listener, ctx.Done()); err != nil {
		log.Fatal(err)
	}
}

// Parts are the parts of a service.
type Parts struct {
	Locker *core.Locker
	Engine *idempotency.Engine
	Bank   bank.Bank
	store  *redisstore.Store
}

// Open connects to Redis. scope finds the user of a request.
func Open(scope core.RequestFunc) (*Parts, error) {
	rdb := redis.NewClient(&redis.Options{Addr: *redisAddr, ContextTimeoutEnabled: true, MaxRetries: -1})
	store, err := redisstore.New(rdb)
	if err != nil {
		return nil, err
	}
	locker, err := core.New(store, core.Watchdog(*lease))
	if err != nil {
		return nil, err
	}
	engine, err := idempotency.New(store, idempotency.Lease(*lease), idempotency.Scope(scope))
	if err != nil {
		return nil, err
	}
	return &Parts{locker, engine, bank.Bank{Redis: rdb, Work: *work}, store}, nil
}

// ServeHTTP serves until stop is closed, or until the server fails. The locks are inside the
// time limit: a handler that continues after the limit keeps its lock.
func (p *Parts) ServeHTTP(listener net.Listener, stop <-chan struct{}, handler http.Handler) error {
	server := &http.Server{
		Handler:      http.TimeoutHandler(handler, *Limit, "too slow"),
		ReadTimeout:  *Limit,
		WriteTimeout: 2 * *Limit,
	}
	return p.Serve(stop, func() error { return server.Serve(listener) }, server.Shutdown)
}

// Serve calls serve until stop is closed, or until serve returns, and then closes all.
func (p *Parts) Serve(stop <-chan struct{}, serve func() error, shutdown func(context.Context) error) (err error) {
	failed := make(chan error, 1)
	go func() { failed <- serve() }()
	select {
	case err = <-failed:
	case <-stop:
	}
	return errors.Join(err, // in this order, each with its own time limit
		within(2**Limit, shutdown),
		within(time.Minute, p.Engine.Close),
		within(*Limit, p.Locker.Close),
		p.store.Close(),
		p.Bank.Redis.Close())
}

// within calls f with a context that ends after that time.
func within(d time.Duration, f func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(context.Background(), d)
	defer cancel()
	return f(ctx)
}
