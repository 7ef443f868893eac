package main

import (
	"net/http"

	"github.com/interlock-go/interlock/httplock"
)

// httpRoutes is the bank on net/http. One call around its handler serializes a
// route.
func httpRoutes(s *service) http.Handler {
	account := httplock.Serialize(s.account)
	transfer := httplock.Serialize(s.transfer)
	reports := httplock.Guard(s.reports)
	ratings := httplock.Guard(s.ratings)
	once := httplock.Idempotent(s.payments)

	// The mux has decoded the parameters.
	read := func(w http.ResponseWriter, r *http.Request) input { return input{r, r.PathValue, w.Header()} }
	// checked refuses an invalid request before it waits for a lock.
	checked := func(check func(input) error, next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if err := check(read(w, r)); err != nil {
				s.writeError(r.Context(), w, r.Pattern, err)
				return
			}
			next.ServeHTTP(w, r)
		})
	}
	// admitted is checked for payments. It stores the order in the request's context.
	admitted := func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			admitted, err := s.restAdmit(r)
			if err != nil {
				s.writeError(r.Context(), w, r.Pattern, err)
				return
			}
			next.ServeHTTP(w, admitted)
		})
	}
	// do runs under the lock, whose lease is in the request's context.
	do := func(operation func(input) (any, error)) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			result, err := operation(read(w, r))
			s.respond(r.Context(), w, r.Pattern, result, err)
		})
	}

	mux := http.NewServeMux()
	mux.Handle("GET /accounts/{id}", do(s.restGet))
	mux.Handle("PUT /accounts/{id}", checked(checkPut, account(do(s.restPut))))
	mux.Handle("POST /accounts/{id}/debit", checked(checkDebit, account(do(s.restDebit))))
	mux.Handle("POST /accounts/{id}/debit-unsafe", checked(checkDebit, do(s.restDebitUnsafe)))
	mux.Handle("POST /transfers/{from}/{to}", checked(checkTransfer, transfer(do(s.restTransfer))))
	mux.Handle("GET /reports/{first}/{second}", checked(checkReport, reports(do(s.restReport))))
	mux.Handle("GET /reports-unsafe/{first}/{second}", checked(checkReport, do(s.restReport)))
	mux.Handle("GET /accounts/{id}/rating", checked(checkRate, ratings(do(s.restRate))))
	mux.Handle("GET /accounts/{id}/rating-unsafe", checked(checkRate, do(s.restRate)))
	mux.Handle("POST /payments", admitted(once(do(s.restPay))))
	return s.routed(mux)
}

// routed is the mux with a span for each request, and with a problem for each request
// that matches no route.
func (s *service) routed(mux *http.ServeMux) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		refuse, pattern := mux.Handler(r)
		if pattern == "" {
			refusal := &bodyless{ResponseWriter: w, status: http.StatusOK}
			refuse.ServeHTTP(refusal, r) // sets Allow
			writeNoRoute(w, refusal.status)
			return
		}
		ctx, end := s.telemetry.request(r.Context(), "http", pattern)
		defer end()
		mux.ServeHTTP(w, r.WithContext(ctx))
	})
}

// bodyless keeps a response's headers and status, and drops the rest.
type bodyless struct {
	http.ResponseWriter
	status int
}

func (b *bodyless) WriteHeader(status int)      { b.status = status }
func (b *bodyless) Write(p []byte) (int, error) { return len(p), nil }
