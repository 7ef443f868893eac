// Command production is one service with everything wired, on gin: a serialized route, an
// idempotent endpoint, traces, metrics, a debug page behind authentication, readiness, and
// an end that fits into the time that kubernetes.yaml leaves a process. The other examples
// are smaller; begin with them.
//
//	curl -u alice:secret -X POST localhost:8080/accounts/42/debit
//	curl -u alice:secret -X POST localhost:8080/payments -H 'Idempotency-Key: k1'
//	curl localhost:9090/readyz localhost:9090/metrics
//	curl -u operator:secret localhost:9090/debug/interlock
//
// Traces go to the collector that OTEL_EXPORTER_OTLP_ENDPOINT names, as in
// http://localhost:4318; without it nowhere.
package main

import (
	"context"
	"errors"
	"flag"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/signal"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/gin-gonic/gin"
	client "github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/redis/go-redis/v9"
	"go.opentelemetry.io/contrib/instrumentation/github.com/gin-gonic/gin/otelgin"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/exporters/prometheus"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/trace"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/fleet"
	"github.com/interlock-go/interlock/core/idempotency"
	"github.com/interlock-go/interlock/core/observe"
	"github.com/interlock-go/interlock/core/redisstore"
	"github.com/interlock-go/interlock/examples/internal/bank"
	"github.com/interlock-go/interlock/ginlock"
	"github.com/interlock-go/interlock/interlockdebug"
	otellock "github.com/interlock-go/interlock/otel"
)

const name = "bank" // of the service, in traces and in the fleet

// limit is how long a client waits for its answer, and a handler may run.
const limit = 8 * time.Second

// The end of the service has a time limit for each step. Together with preStop they are below
// terminationGracePeriodSeconds in kubernetes.yaml. Then Kubernetes kills the process.
const (
	finishing = limit + 2*time.Second // of the requests under way
	storing   = limit                 // of answers after their clients got a timeout
	releasing = 2 * time.Second       // of the locks
	flushing  = 3 * time.Second       // of the traces
)

// leaving is how long requests are still served when the process has been told to end. By
// then no balancer sends any, since the pod is not ready.
var leaving = flag.Duration("leaving", 5*time.Second, "how long requests still come when the service is told to end")

func main() {
	addr := flag.String("addr", ":8080", "where clients come")
	opsAddr := flag.String("ops", ":9090", "where Kubernetes, Prometheus and operators come; not public")
	redisAddr := flag.String("redis", "localhost:6379", "Redis to use")
	flag.Parse()
	slog.SetDefault(slog.New(slog.NewJSONHandler(os.Stderr, nil)))
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second signal ends the process at once
	if err := start(*addr, *opsAddr, *redisAddr, ctx.Done()); err != nil {
		slog.Error("ended", "error", err)
		os.Exit(1)
	}
}

// start opens the dependencies of the service, and runs it.
func start(addr, opsAddr, redisAddr string, stop <-chan struct{}) error {
	rdb := redis.NewClient(&redis.Options{Addr: redisAddr, ContextTimeoutEnabled: true, MaxRetries: -1})
	store, err := redisstore.New(rdb)
	if err != nil {
		return err
	}
	err = within(limit, func(ctx context.Context) error {
		unsafe, err := store.Check(ctx)
		for _, sentence := range unsafe {
			slog.Warn("a setting of Redis is not safe", "setting", sentence)
		}
		return err
	})
	if err != nil {
		slog.Warn("Redis does not answer yet", "error", err)
	}
	public, err := net.Listen("tcp", addr)
	if err != nil {
		return err
	}
	ops, err := net.Listen("tcp", opsAddr)
	if err != nil {
		return err
	}
	return errors.Join(run(public, ops, store, rdb, stop), store.Close(), rdb.Close())
}

// store keeps locks and records.
type store interface {
	core.Store
	idempotency.Store
}

// run serves until the process receives a signal to stop.
func run(public, ops net.Listener, store store, rdb *redis.Client, stop <-chan struct{}) error {
	flush, err := telemetry()
	if err != nil {
		return err
	}
	traced, err := otellock.New() // by the providers that telemetry has set
	if err != nil {
		return err
	}
	counted := interlockdebug.NewObserver()
	// The engine takes the observer of the locker of its rule.
	locker, err := core.New(store, core.Service(name, ""), core.WithObserver(observe.Join(traced, counted)), core.MaxHold(limit))
	if err != nil {
		return err
	}
	defer traced.Watch(locker)()
	user := core.FromContext(gin.AuthUserKey)
	debit := core.Serialize(locker, "account/{id:int}") // the handler parses a number, so 42 and 042 are one account
	payer := core.Serialize(locker, "payer/{ctx.user}", core.ContextFunc("user", user))
	engine, err := idempotency.New(store, idempotency.Name("payment"), idempotency.Scope(user), idempotency.Under(payer), idempotency.MaxHold(limit))
	if err != nil {
		return err
	}

	uncount, err := countUnknown(traced, locker, rdb)
	if err != nil {
		return err
	}

	s := service{bank.Bank{Redis: rdb}}
	r := gin.New()
	r.Use(gin.Recovery(), otelgin.Middleware(name), gin.BasicAuth(gin.Accounts{"alice": "secret", "bob": "secret"}))
	r.POST("/accounts/:id/debit", ginlock.Guard(debit), s.debit)
	r.POST("/payments", ginlock.Idempotent(engine), s.pay)
	var ending atomic.Bool
	handler := sendAway(&ending, http.TimeoutHandler(r, limit, "too slow"))
	server := &http.Server{Handler: handler, ReadTimeout: limit, WriteTimeout: 2 * limit}

	o := gin.New()
	o.GET("/livez", func(c *gin.Context) { c.String(http.StatusOK, "alive") })
	o.GET("/readyz", func(c *gin.Context) {
		err := within(time.Second, func(ctx context.Context) error { return rdb.Ping(ctx).Err() })
		if err != nil || ending.Load() {
			c.String(http.StatusServiceUnavailable, "not ready")
			return
		}
		c.String(http.StatusOK, "ready")
	})
	o.GET("/metrics", gin.WrapH(promhttp.HandlerFor(client.DefaultGatherer, promhttp.HandlerOpts{EnableOpenMetrics: true})))
	o.GET("/debug/interlock", gin.BasicAuth(gin.Accounts{"operator": "secret"}),
		gin.WrapH(interlockdebug.Handler(locker, interlockdebug.Observed(counted), interlockdebug.Engines(engine))))
	operation := &http.Server{Handler: o, ReadTimeout: limit}

	failed := make(chan error, 2)
	go func() { failed <- server.Serve(public) }()
	go func() { failed <- operation.Serve(ops) }()
	select {
	case err = <-failed:
	case <-stop:
		ending.Store(true)
		time.Sleep(*leaving)
	}
	uncount()
	return errors.Join(err, // in this order
		within(finishing, server.Shutdown),
		within(storing, engine.Close),
		within(releasing, locker.Close),
		within(flushing, flush),
		operation.Close())
}

// countUnknown measures how many requests wait for an operator, since their outcome is unknown. A count reads all
// records, so one process of the service counts.
func countUnknown(traced *otellock.Observer, locker *core.Locker, rdb *redis.Client) (stop func(), err error) {
	records, err := fleet.New(rdb)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	var counting sync.WaitGroup
	counting.Go(func() {
		err := core.Lead(ctx, locker, "count of unknown outcomes", func(ctx context.Context) error {
			defer traced.WatchUnknown(records.Unknown)()
			<-ctx.Done()
			return nil
		}, core.MaxHold(24*time.Hour))
		if ctx.Err() == nil {
			slog.Error("unknown outcomes are not counted", "error", err)
		}
	})
	return func() { cancel(); counting.Wait() }, nil
}

// sendAway has each client connect anew, to another process, after its next answer while this
// process is ending. To close the connections instead would break requests on their way.
func sendAway(ending *atomic.Bool, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if ending.Load() {
			w.Header().Set("Connection", "close")
		}
		next.ServeHTTP(w, r)
	})
}

// telemetry sets the providers of OpenTelemetry, and returns the function that ends them.
func telemetry() (flush func(context.Context) error, err error) {
	exporter, err := prometheus.New() // for /metrics
	if err != nil {
		return nil, err
	}
	otel.SetMeterProvider(metric.NewMeterProvider(metric.WithReader(exporter)))
	otel.SetTextMapPropagator(propagation.TraceContext{})
	if os.Getenv("OTEL_EXPORTER_OTLP_ENDPOINT") == "" {
		return func(context.Context) error { return nil }, nil
	}
	traces, err := otlptracehttp.New(context.Background())
	if err != nil {
		return nil, err
	}
	provider := trace.NewTracerProvider(trace.WithBatcher(traces))
	otel.SetTracerProvider(provider)
	return provider.Shutdown, nil
}

// within calls f with a context that ends after that time.
func within(d time.Duration, f func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(context.Background(), d)
	defer cancel()
	return f(ctx)
}

type service struct{ bank bank.Bank }

func (s service) debit(c *gin.Context) {
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

func (s service) pay(c *gin.Context) {
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
