// Command nethttp is a complete service on net/http, with authentication, recovery,
// time limits and a graceful end. Debits of one account run one after the other. A
// payment is made once, even if the client sends it several times. Two processes on
// one Redis, with different -addr, serve one bank.
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
	"fmt"
	"log"
	"net"
	"net/http"
	"os"
	"os/signal"
	"strconv"
	"syscall"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/idempotency"
	"github.com/interlock-go/interlock/core/redisstore"
	"github.com/interlock-go/interlock/examples/internal/bank"
	"github.com/interlock-go/interlock/httplock"
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
	engine, err := idempotency.New(store, idempotency.Lease(*lease), idempotency.Scope(core.FromContext(userKey{})))
	if err != nil {
		return err
	}

	s := service{bank.Bank{Redis: rdb, Work: *work}}
	debit := core.Serialize(locker, "account/{id:int}") // the handler parses a number, so 42 and 042 are one account
	mux := http.NewServeMux()
	mux.Handle("POST /accounts/{id}/debit", httplock.Guard(debit)(http.HandlerFunc(s.debit)))
	mux.Handle("POST /payments", httplock.Idempotent(engine)(http.HandlerFunc(s.pay)))

	// The lock is inside the time limit: a handler that continues after the limit
	// keeps its lock.
	server := &http.Server{
		Handler:      recovered(authenticate(http.TimeoutHandler(mux, *limit, "too slow"))),
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

func (s service) debit(w http.ResponseWriter, r *http.Request) {
	id, err := strconv.ParseInt(r.PathValue("id"), 10, 64)
	if err != nil {
		http.Error(w, "no such account", http.StatusNotFound)
		return
	}
	balance, err := s.bank.Debit(r.Context(), strconv.FormatInt(id, 10))
	if err != nil {
		http.Error(w, "not now", http.StatusServiceUnavailable)
		return
	}
	_, _ = fmt.Fprint(w, balance)
}

func (s service) pay(w http.ResponseWriter, r *http.Request) {
	ctx := r.Context()
	// After the mark, no request repeats the payment, even if this process dies.
	if err := idempotency.MarkEffect(ctx); err != nil {
		http.Error(w, "not now", http.StatusServiceUnavailable)
		return
	}
	if err := s.bank.Pay(ctx, ctx.Value(userKey{}).(string)); err != nil {
		http.Error(w, "the bank has failed", http.StatusBadGateway)
		return
	}
	w.WriteHeader(http.StatusCreated)
	_, _ = fmt.Fprint(w, "paid")
}

// userKey is the context key under which authentication stores the user.
type userKey struct{}

func authenticate(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		user, password, _ := r.BasicAuth()
		if user == "" || subtle.ConstantTimeCompare([]byte(password), []byte("secret")) == 0 {
			w.Header().Set("WWW-Authenticate", "Basic")
			http.Error(w, "log in", http.StatusUnauthorized)
			return
		}
		next.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), userKey{}, user)))
	})
}

func recovered(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer func() {
			if v := recover(); v != nil {
				log.Println("panic:", v)
				http.Error(w, "a mistake of ours", http.StatusInternalServerError)
			}
		}()
		next.ServeHTTP(w, r)
	})
}
