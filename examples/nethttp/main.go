// Command nethttp is a complete service on net/http, with authentication, recovery,
// time limits and a graceful end. Debits of one account run one after the other. A
// payment is made once, even if the client sends it several times. Two processes on
// one Redis, with different -addr, serve one bank.
// examples/internal/service connects and closes it; examples/production has metrics, traces, a
// debug page and readiness as well.
//
//	curl -u alice:secret -X POST localhost:8080/accounts/42/debit
//	curl -u alice:secret -X POST localhost:8080/payments -H 'Idempotency-Key: k1'
package main

import (
	"context"
	"crypto/subtle"
	"fmt"
	"log"
	"net"
	"net/http"
	"strconv"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/idempotency"
	"github.com/interlock-go/interlock/examples/internal/bank"
	"github.com/interlock-go/interlock/examples/internal/service"
	"github.com/interlock-go/interlock/httplock"
)

func main() { service.Main("localhost:8080", run) }

// run serves until the process receives a signal to stop.
func run(listener net.Listener, stop <-chan struct{}) error {
	parts, err := service.Open(core.FromContext(userKey{}))
	if err != nil {
		return err
	}
	s := handlers{parts.Bank}
	debit := core.Serialize(parts.Locker, "account/{id:int}") // the handler parses a number, so 42 and 042 are one account
	mux := http.NewServeMux()
	mux.Handle("POST /accounts/{id}/debit", httplock.Guard(debit)(http.HandlerFunc(s.debit)))
	mux.Handle("POST /payments", httplock.Idempotent(parts.Engine)(http.HandlerFunc(s.pay)))
	return parts.ServeHTTP(listener, stop, recovered(authenticate(mux)))
}

type handlers struct{ bank bank.Bank }

func (s handlers) debit(w http.ResponseWriter, r *http.Request) {
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

func (s handlers) pay(w http.ResponseWriter, r *http.Request) {
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

// userKey is the context key of the user, which authentication stores.
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
