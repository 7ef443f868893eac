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
)

// The REST interface is the same on net/http, gin and echo. This file has what they
// share. http.go, gin.go and echo.go connect each route with its operation and its
// lock.

// input is a request of any of the frameworks.
type input struct {
	*http.Request
	param  func(name string) string // a path parameter, decoded
	answer http.Header              // of the response
}

// The operations. Those that change an account under a lock find its token in the
// request's context, and fail without it.

func (s *service) restGet(in input) (any, error) {
	return s.bank.Get(in.Context(), in.param("id"))
}

func (s *service) restPut(in input) (any, error) {
	n, err := in.balance()
	if err != nil {
		return nil, err
	}
	return s.put(in.Context(), in.param("id"), n)
}

func (s *service) restDebit(in input) (any, error) {
	n, err := in.amount()
	if err != nil {
		return nil, err
	}
	return s.debit(in.Context(), in.param("id"), n)
}

func (s *service) restDebitUnsafe(in input) (any, error) {
	n, err := in.amount()
	if err != nil {
		return nil, err
	}
	return s.bank.DebitUnsafe(in.Context(), in.param("id"), n)
}

func (s *service) restTransfer(in input) (any, error) {
	n, err := in.amount()
	if err != nil {
		return nil, err
	}
	return s.move(in.Context(), in.param("from"), in.param("to"), n)
}

func (s *service) restReport(in input) (any, error) {
	return s.report(in.Context(), in.param("first"), in.param("second"))
}

func (s *service) restRate(in input) (any, error) {
	return s.rate(in.Context(), in.param("id"))
}

// The checks refuse requests that the bank would refuse in any case, before they wait
// for the lock.

func checkPut(in input) error {
	_, err := in.balance()
	return cmp.Or(bank.CheckID(in.param("id")), err)
}

func checkDebit(in input) error {
	_, err := in.amount()
	return cmp.Or(bank.CheckID(in.param("id")), err)
}

func checkTransfer(in input) error {
	_, err := in.amount()
	return cmp.Or(bank.CheckPair(in.param("from"), in.param("to")), err)
}

func checkReport(in input) error { return bank.CheckPair(in.param("first"), in.param("second")) }

func checkRate(in input) error { return bank.CheckID(in.param("id")) }

// amount and balance are the numbers that the operations take.

func (in input) amount() (int64, error) {
	n, err := in.number("amount")
	return n, cmp.Or(err, bank.CheckAmount(n))
}

func (in input) balance() (int64, error) {
	n, err := in.number("balance")
	return n, cmp.Or(err, bank.CheckBalance(n))
}

// number is a query parameter that must be given once.
func (in input) number(name string) (int64, error) {
	values := in.URL.Query()[name]
	if len(values) != 1 {
		return 0, fmt.Errorf("%w: the query parameter %q must be given once", bank.ErrInvalid, name)
	}
	n, err := strconv.ParseInt(values[0], 10, 64)
	if err != nil {
		return 0, fmt.Errorf("%w: the query parameter %q is not a number in range", bank.ErrInvalid, name)
	}
	return n, nil
}

// problem is the body of an error (RFC 9457).
type problem struct {
	Type   string `json:"type"`
	Title  string `json:"title"`
	Status int    `json:"status"`
	Detail string `json:"detail,omitempty"`
}

// respond writes the result or the error of an operation.
func (s *service) respond(ctx context.Context, w http.ResponseWriter, route string, result any, err error) {
	if err != nil {
		s.writeError(ctx, w, route, err)
		return
	}
	writeResult(w, result)
}

// writeResult writes the result of an operation.
func writeResult(w http.ResponseWriter, result any) {
	status := http.StatusOK
	if _, made := result.(receipt); made {
		status = http.StatusCreated
	}
	writeJSON(w, status, "application/json", result)
}

// writeError answers with a problem, or leaves the answer to the lock.
func (s *service) writeError(ctx context.Context, w http.ResponseWriter, route string, err error) {
	// The work ended because the context ended: the client left, or the lease is
	// lost. After a loss the lock's middleware answers, as it does for every handler
	// that fails without writing anything.
	if errors.Is(err, context.Cause(ctx)) {
		return
	}
	r, detail := refusalFor(err)
	if r.status >= http.StatusInternalServerError {
		s.log.ErrorContext(ctx, "request failed", "route", route, "error", err)
	}
	writeProblem(w, problem{Type: r.reason, Title: r.err.Error(), Status: r.status, Detail: detail})
}

// writeNoRoute writes the refusals of the routers themselves, no such route (404) and
// no such method (405), in the form of all other refusals.
func writeNoRoute(w http.ResponseWriter, status int) {
	writeProblem(w, problem{Type: "no-route", Title: http.StatusText(status), Status: status})
}

// writeProblem completes the type. The bank's types have their own prefix, so that no
// client confuses them with the lock's.
func writeProblem(w http.ResponseWriter, p problem) {
	p.Type = "urn:example:payments:" + p.Type
	if p.Status == http.StatusUnauthorized {
		w.Header().Set("WWW-Authenticate", `Bearer realm="payments"`)
	}
	writeJSON(w, p.Status, "application/problem+json", p)
}

func writeJSON(w http.ResponseWriter, status int, contentType string, body any) {
	w.Header().Set("Content-Type", contentType)
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(body) // it fails if the client has left
}

// readHeaderTimeout bounds the headers of a request, and for how long a new connection
// may stay without its first request. The server closes the connection then, so a
// client must stop using such a connection earlier (see dial).
const readHeaderTimeout = 20 * time.Second

// restFrontend serves a framework's routes, over HTTP/1 and HTTP/2 without TLS:
// curl --http2-prior-knowledge.
func (s *service) restFrontend(ctx context.Context, name, addr string, routes http.Handler) (*frontend, error) {
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", addr)
	if err != nil {
		return nil, err
	}
	server := &http.Server{Handler: s.recovering(routes), ReadHeaderTimeout: readHeaderTimeout, Protocols: new(http.Protocols)}
	server.Protocols.SetHTTP1(true)
	server.Protocols.SetUnencryptedHTTP2(true)
	// gin's Run and echo's Start would do the same; with a server of our own,
	// the address is known before it serves, and all three drain alike.
	return &frontend{
		name: name,
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

// recovering answers requests whose handlers panicked; their locks are released.
// net/http alone would close the connection, and then some clients repeat the request
// by themselves.
func (s *service) recovering(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer s.recoverREST(r.Context(), w)
		next.ServeHTTP(w, r)
	})
}

// recoverREST is deferred.
func (s *service) recoverREST(ctx context.Context, w http.ResponseWriter) {
	p := recover()
	if err, ok := p.(error); ok && errors.Is(err, http.ErrAbortHandler) {
		panic(p) // this panic closes the connection on purpose
	}
	if p != nil {
		s.log.ErrorContext(ctx, "panic in a request", "panic", p)
		// Handlers here write as their last step, so nothing was written.
		writeProblem(w, problem{Type: internal.reason, Title: internal.err.Error(), Status: internal.status})
	}
}

// ignoreClosed is for listeners, which their servers close when they drain.
func ignoreClosed(err error) error {
	if errors.Is(err, net.ErrClosed) {
		return nil
	}
	return err
}
