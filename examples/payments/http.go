package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"time"

	"github.com/interlock-go/interlock/examples/payments/bank"
	"github.com/interlock-go/interlock/httplock"
)

// httpFrontend is the bank as a REST service on net/http.
func httpFrontend(ctx context.Context, addr string, s *service) (*frontend, error) {
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", addr)
	if err != nil {
		return nil, err
	}
	server := &http.Server{Handler: routes(s), ReadHeaderTimeout: 5 * time.Second}
	return &frontend{
		name: "http",
		addr: listener.Addr(),
		serve: func() error {
			if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
				return err
			}
			return nil
		},
		drain: func(ctx context.Context) error {
			return errors.Join(server.Shutdown(ctx), ignoreClosed(listener.Close()))
		},
	}, nil
}

func ignoreClosed(err error) error {
	if errors.Is(err, net.ErrClosed) {
		return nil
	}
	return err
}

// routes is the whole REST interface. One call around its handler serializes a
// route. What is wrong with a request in itself is found before it waits for
// the lock.
func routes(s *service) http.Handler {
	account := httplock.Serialize(s.account)
	transfer := httplock.Serialize(s.transfer)

	mux := http.NewServeMux()
	mux.Handle("GET /accounts/{id}", s.answer(s.httpGet))
	mux.Handle("PUT /accounts/{id}", s.checked(balance, account(s.answer(s.httpPut))))
	mux.Handle("POST /accounts/{id}/debit", s.checked(amount, account(s.answer(s.httpDebit))))
	mux.Handle("POST /accounts/{id}/debit-unsafe", s.checked(amount, s.answer(s.httpDebitUnsafe)))
	mux.Handle("POST /transfers/{from}/{to}", s.checked(amount, transfer(s.answer(s.httpTransfer))))
	return withProblems(mux)
}

func (s *service) httpGet(r *http.Request) (any, error) {
	return s.bank.Get(r.Context(), r.PathValue("id"))
}

func (s *service) httpPut(r *http.Request) (any, error) {
	n, err := balance(r)
	if err != nil {
		return nil, err
	}
	return s.put(r.Context(), r.PathValue("id"), n)
}

func (s *service) httpDebit(r *http.Request) (any, error) {
	n, err := amount(r)
	if err != nil {
		return nil, err
	}
	return s.debit(r.Context(), r.PathValue("id"), n)
}

func (s *service) httpDebitUnsafe(r *http.Request) (any, error) {
	n, err := amount(r)
	if err != nil {
		return nil, err
	}
	return s.bank.DebitUnsafe(r.Context(), r.PathValue("id"), n)
}

func (s *service) httpTransfer(r *http.Request) (any, error) {
	n, err := amount(r)
	if err != nil {
		return nil, err
	}
	return s.move(r.Context(), r.PathValue("from"), r.PathValue("to"), n)
}

// checked turns away requests whose accounts or number the bank would refuse.
func (s *service) checked(number func(*http.Request) (int64, error), next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, err := number(r)
		if from := r.PathValue("from"); from != "" {
			err = cmp.Or(bank.CheckPair(from, r.PathValue("to")), err)
		} else {
			err = cmp.Or(bank.CheckID(r.PathValue("id")), err)
		}
		if err != nil {
			s.writeError(w, r, err)
			return
		}
		next.ServeHTTP(w, r)
	})
}

func amount(r *http.Request) (int64, error) {
	n, err := number(r, "amount")
	return n, cmp.Or(err, bank.CheckAmount(n))
}

func balance(r *http.Request) (int64, error) {
	n, err := number(r, "balance")
	return n, cmp.Or(err, bank.CheckBalance(n))
}

// number is a query parameter that must be given once.
func number(r *http.Request, name string) (int64, error) {
	values := r.URL.Query()[name]
	if len(values) != 1 {
		return 0, fmt.Errorf("%w: the query parameter %q must be given once", bank.ErrInvalid, name)
	}
	n, err := strconv.ParseInt(values[0], 10, 64)
	if err != nil {
		return 0, fmt.Errorf("%w: the query parameter %q is not a number in range", bank.ErrInvalid, name)
	}
	return n, nil
}

// answer renders what an operation returns.
func (s *service) answer(do func(*http.Request) (any, error)) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		result, err := do(r)
		if err != nil {
			s.writeError(w, r, err)
			return
		}
		writeJSON(w, http.StatusOK, "application/json", result)
	})
}

// problem is the body of an error (RFC 9457).
type problem struct {
	Type   string `json:"type"`
	Title  string `json:"title"`
	Status int    `json:"status"`
	Detail string `json:"detail,omitempty"`
}

// refusals says how each of the bank's errors is answered; any other is a 500.
var refusals = []struct {
	err     error
	status  int
	reason  string
	explain bool // the error's text is meant for the client
}{
	{bank.ErrInvalid, http.StatusBadRequest, "invalid-request", true},
	{bank.ErrUnknownAccount, http.StatusNotFound, "unknown-account", false},
	{bank.ErrInsufficientFunds, http.StatusPaymentRequired, "insufficient-funds", false},
	{bank.ErrStaleToken, http.StatusConflict, "stale-token", false},
	{bank.ErrUnavailable, http.StatusServiceUnavailable, "ledger-unavailable", false},
	{bank.ErrOutcomeUnknown, http.StatusInternalServerError, "outcome-unknown", false},
}

func (s *service) writeError(w http.ResponseWriter, r *http.Request, err error) {
	// The work was given up because the context ended. Either the client has
	// gone, or the lease is lost: then the lock's middleware answers, as it
	// does for every handler that fails without having written anything.
	if errors.Is(err, context.Cause(r.Context())) {
		return
	}
	p := problem{Type: "internal", Title: "internal error", Status: http.StatusInternalServerError}
	for _, known := range refusals {
		if !errors.Is(err, known.err) {
			continue
		}
		p = problem{Type: known.reason, Title: known.err.Error(), Status: known.status}
		if known.explain {
			p.Detail = err.Error()
		}
		break
	}
	if p.Status >= http.StatusInternalServerError {
		s.log.ErrorContext(r.Context(), "request failed", "route", r.Pattern, "error", err)
	}
	writeProblem(w, p)
}

func writeProblem(w http.ResponseWriter, p problem) {
	p.Type = "urn:example:payments:" + p.Type
	writeJSON(w, p.Status, "application/problem+json", p)
}

func writeJSON(w http.ResponseWriter, status int, contentType string, body any) {
	w.Header().Set("Content-Type", contentType)
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(body) // it fails when the client has left
}

// withProblems gives the refusals of the mux itself, no such route and no such
// method, the form that all others have.
func withProblems(mux *http.ServeMux) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		refuse, pattern := mux.Handler(r)
		if pattern != "" {
			mux.ServeHTTP(w, r)
			return
		}
		refusal := &bodyless{ResponseWriter: w, status: http.StatusOK}
		refuse.ServeHTTP(refusal, r) // sets Allow
		title := http.StatusText(refusal.status)
		writeProblem(w, problem{Type: "no-route", Title: title, Status: refusal.status})
	})
}

// bodyless keeps a response's headers and status, and drops the rest.
type bodyless struct {
	http.ResponseWriter
	status int
}

func (b *bodyless) WriteHeader(status int)      { b.status = status }
func (b *bodyless) Write(p []byte) (int, error) { return len(p), nil }
