package main

import (
	"context"
	"encoding/json"
	"errors"
	"net"
	"net/http"
	"strconv"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/examples/payments/paymentspb"
)

// The REST interface is the same on net/http, gin and echo. This file has their common code,
// and frameworks.go connects each route with its lock.

// input is a request of any of the frameworks.
type input struct {
	*http.Request
	param func(name string) string // a path parameter, decoded
}

// number is a query parameter, or -1, which the bank refuses.
func (in input) number(name string) int64 {
	n, err := strconv.ParseInt(in.URL.Query().Get(name), 10, 64)
	if err != nil {
		return -1
	}
	return n
}

// route is an operation of the bank over REST.
type route struct {
	method, path string
	guard        *core.Guard // its lock; nil: it has none, or the engine of the payments takes it
	once         bool        // after the engine
	admit        func(in input) (*http.Request, error)
	run          func(in input) (proto.Message, error) // under the lock
}

// operation makes a route of an operation and the message that it takes.
func operation[Q any, A proto.Message](pattern string, guard *core.Guard, read func(in input) Q, do func(context.Context, Q) (A, error)) route {
	method, path, _ := strings.Cut(pattern, " ")
	return route{
		method: method, path: path, guard: guard,
		admit: func(in input) (*http.Request, error) { return in.Request, check(read(in)) },
		run:   func(in input) (proto.Message, error) { return do(in.Context(), read(in)) },
	}
}

// routes are all routes.
func (s *service) routes() []route {
	get := func(in input) *paymentspb.GetAccountRequest {
		return &paymentspb.GetAccountRequest{Account: in.param("id")}
	}
	put := func(in input) *paymentspb.PutAccountRequest {
		return &paymentspb.PutAccountRequest{Account: in.param("id"), Balance: in.number("balance")}
	}
	debit := func(in input) *paymentspb.DebitRequest {
		return &paymentspb.DebitRequest{Account: in.param("id"), Amount: in.number("amount")}
	}
	transfer := func(in input) *paymentspb.TransferRequest {
		return &paymentspb.TransferRequest{From: in.param("from"), To: in.param("to"), Amount: in.number("amount")}
	}
	report := func(in input) *paymentspb.ReportRequest {
		return &paymentspb.ReportRequest{First: in.param("first"), Second: in.param("second")}
	}
	rate := func(in input) *paymentspb.RateRequest { return &paymentspb.RateRequest{Account: in.param("id")} }
	return []route{
		operation("GET /accounts/{id}", nil, get, s.GetAccount),
		operation("PUT /accounts/{id}", s.account, put, s.PutAccount),
		operation("POST /accounts/{id}/debit", s.account, debit, s.Debit),
		operation("POST /accounts/{id}/debit-unsafe", nil, debit, s.debitUnsafe),
		operation("POST /transfers/{from}/{to}", s.transfer, transfer, s.Transfer),
		operation("GET /reports/{first}/{second}", s.reports, report, s.Report),
		operation("GET /reports-unsafe/{first}/{second}", nil, report, s.Report),
		operation("GET /accounts/{id}/rating", s.ratings, rate, s.Rate),
		operation("GET /accounts/{id}/rating-unsafe", nil, rate, s.Rate),
		{
			method: http.MethodPost, path: "/payments", once: true, admit: s.admitREST,
			run: func(in input) (proto.Message, error) { return s.Pay(in.Context(), nil) }, // the order is in the context
		},
	}
}

// colons is a path as gin and echo write it.
func colons(path string) string { return strings.NewReplacer("{", ":", "}", "").Replace(path) }

// answer writes the result of an operation, or a problem, or leaves the answer to the lock.
func (s *service) answer(w http.ResponseWriter, r *http.Request, result proto.Message, err error) {
	if err != nil {
		s.refuse(w, r, err)
		return
	}
	status := http.StatusOK
	if _, made := result.(*paymentspb.Payment); made {
		status = http.StatusCreated
	}
	writeJSON(w, status, "application/json", fields(result.ProtoReflect()))
}

// problem is the body of an error (RFC 9457).
type problem struct {
	Type   string `json:"type"`
	Title  string `json:"title"`
	Status int    `json:"status"`
}

func (s *service) refuse(w http.ResponseWriter, r *http.Request, err error) {
	// The work ended because the context ended: the client left, or the lease is
	// lost. After a loss the lock's middleware answers, as it does for every handler
	// that fails without writing anything.
	if errors.Is(err, context.Cause(r.Context())) {
		return
	}
	a := refusalFor(err)
	if a.status >= http.StatusInternalServerError {
		s.log.ErrorContext(r.Context(), "request failed", "method", r.Method, "error", err)
	}
	// The bank's types have their own prefix, so that no client confuses them with the
	// lock's.
	writeJSON(w, a.status, "application/problem+json", problem{"urn:example:payments:" + a.reason, a.text, a.status})
}

func writeJSON(w http.ResponseWriter, status int, contentType string, body any) {
	w.Header().Set("Content-Type", contentType)
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(body) // it fails if the client has left
}

// fields is a message in JSON, with zeros and with numbers as numbers.
func fields(m protoreflect.Message) map[string]any {
	all := make(map[string]any)
	for i := range m.Descriptor().Fields().Len() {
		f := m.Descriptor().Fields().Get(i)
		if all[string(f.Name())] = m.Get(f).Interface(); f.Message() != nil {
			all[string(f.Name())] = fields(m.Get(f).Message())
		}
	}
	return all
}

// readHeaderTimeout bounds the headers of a request, and for how long a new connection
// may stay without its first request. The server closes the connection then, so a
// client must stop using such a connection earlier (see dial).
const readHeaderTimeout = 20 * time.Second

// httpFrontend serves a framework's routes.
func httpFrontend(ctx context.Context, name, addr string, routes http.Handler) (*frontend, error) {
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", addr)
	if err != nil {
		return nil, err
	}
	server := &http.Server{Handler: routes, ReadHeaderTimeout: readHeaderTimeout}
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
			err := server.Shutdown(ctx)
			_ = listener.Close() // a server that was never served does not know it
			return err
		},
	}, nil
}
