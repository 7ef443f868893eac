// Command connect is a complete service on connect v2, which serves clients of Connect, gRPC
// and gRPC-Web, with authentication, recovery, time limits and a graceful end. The proto is
// the proto of examples/grpc: debits of one account run one after the other, and a debit with
// an idempotency key runs once for each key. Processes of both commands on one Redis, with
// different -addr, serve one bank. examples/internal/service connects and closes it;
// examples/production has metrics, traces, a debug page and readiness as well.
//
//	curl localhost:8080/interlock.examples.grpc.v1.Bank/Debit -H 'Authorization: Bearer secret-of-alice' \
//		-H 'Idempotency-Key: k1' -H 'Content-Type: application/json' -d '{"accountId": "42", "amount": 1}'
package main

import (
	"context"
	"log"
	"net"
	"net/http"

	"connectrpc.com/connect/v2"
	"connectrpc.com/connect/v2/connecthttp"

	"github.com/interlock-go/interlock/connectlock"
	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/idempotency"
	"github.com/interlock-go/interlock/examples/connect/bankpbconnect"
	"github.com/interlock-go/interlock/examples/grpc/bankpb"
	"github.com/interlock-go/interlock/examples/internal/bank"
	"github.com/interlock-go/interlock/examples/internal/service"
	"github.com/interlock-go/interlock/grpclock"
)

func main() { service.Main("localhost:8080", run) }

// run serves until the process receives a signal to stop.
func run(listener net.Listener, stop <-chan struct{}) error {
	parts, err := service.Open(core.FromContext(userKey{}))
	if err != nil {
		return err
	}
	rules, err := grpclock.FromProto(parts.Locker) // of all methods with the option
	if err != nil {
		return err
	}
	// Calls with a key are idempotent. All calls run under the lock of the proto.
	debit := parts.Engine.With(idempotency.Optional(), idempotency.Under(rules[bankpbconnect.BankDebitProcedure]))
	methods := grpclock.Methods{bankpbconnect.BankDebitProcedure: debit}

	protection := connectlock.Protect(rules, methods)
	server := connect.NewServer(recovered, limited, authenticate, protection.Interceptor())
	bankpbconnect.RegisterBankHandler(server, bankServer{bank: parts.Bank})
	if err := protection.Validate(server); err != nil {
		return err
	}
	mux := http.NewServeMux()
	connecthttp.Mount(mux, server)
	protocols := new(http.Protocols)
	protocols.SetHTTP1(true)
	protocols.SetUnencryptedHTTP2(true) // for clients of gRPC
	web := &http.Server{Handler: mux, Protocols: protocols, ReadTimeout: *service.Limit}
	return parts.Serve(stop, func() error { return web.Serve(listener) }, web.Shutdown)
}

type bankServer struct {
	bankpbconnect.UnimplementedBankHandler
	bank bank.Bank
}

func (s bankServer) Debit(ctx context.Context, r *bankpb.DebitRequest) (*bankpb.DebitResponse, error) {
	// After the mark, no call repeats a debit with the same key, even if this process
	// dies.
	if err := idempotency.MarkEffect(ctx); err != nil {
		return nil, connect.NewError(connect.CodeUnavailable, "not now")
	}
	balance, err := s.bank.Debit(ctx, r.GetAccountId())
	if err != nil {
		return nil, connect.NewError(connect.CodeInternal, "the bank has failed")
	}
	return &bankpb.DebitResponse{Balance: balance}, nil
}

// userKey is the context key of the user, which authentication stores.
type userKey struct{}

func authenticate(next connect.ServerFunc) connect.ServerFunc {
	users := map[string]string{"Bearer secret-of-alice": "alice", "Bearer secret-of-bob": "bob"}
	return func(ctx context.Context, spec connect.Spec, stream connect.ServerStream) error {
		info, _ := connect.CallInfoForServerContext(ctx)
		user := users[info.RequestHeader().Get("Authorization")]
		if user == "" {
			return connect.NewError(connect.CodeUnauthenticated, "log in")
		}
		return next(context.WithValue(ctx, userKey{}, user), spec, stream)
	}
}

func limited(next connect.ServerFunc) connect.ServerFunc {
	return func(ctx context.Context, spec connect.Spec, stream connect.ServerStream) error {
		ctx, cancel := context.WithTimeout(ctx, *service.Limit)
		defer cancel()
		return next(ctx, spec, stream)
	}
}

func recovered(next connect.ServerFunc) connect.ServerFunc {
	return func(ctx context.Context, spec connect.Spec, stream connect.ServerStream) (err error) {
		defer func() {
			if v := recover(); v != nil {
				log.Println("panic in", spec.Procedure, v)
				err = connect.NewError(connect.CodeInternal, "a mistake of ours")
			}
		}()
		return next(ctx, spec, stream)
	}
}
