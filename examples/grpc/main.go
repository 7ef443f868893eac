// Command grpc is a complete gRPC service, with authentication, gzip, recovery, time
// limits and a graceful end. Debits of one account run one after the other, as the
// proto declares. A debit with an idempotency key (metadata idempotency-key) runs once
// for each key. Two processes on one Redis, with different -addr, serve one bank.
// examples/internal/service connects and closes it; examples/production has metrics, traces, a
// debug page and readiness as well.
package main

import (
	"context"
	"log"
	"net"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	_ "google.golang.org/grpc/encoding/gzip" // for clients that ask for it
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/idempotency"
	"github.com/interlock-go/interlock/examples/grpc/bankpb"
	"github.com/interlock-go/interlock/examples/internal/bank"
	"github.com/interlock-go/interlock/examples/internal/service"
	"github.com/interlock-go/interlock/grpclock"
)

func main() { service.Main("localhost:50051", run) }

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
	debit := parts.Engine.With(idempotency.Optional(), idempotency.Under(rules[bankpb.Bank_Debit_FullMethodName]))
	methods := grpclock.Methods{bankpb.Bank_Debit_FullMethodName: debit}

	protection := grpclock.Protect(rules, methods)
	server := grpc.NewServer(
		grpc.ChainUnaryInterceptor(recovered, limited, authenticate, protection.Unary()),
		grpc.ChainStreamInterceptor(protection.Stream()), // the bank has no streams yet
	)
	bankpb.RegisterBankServer(server, bankServer{bank: parts.Bank})
	if err := protection.Validate(server); err != nil {
		return err
	}
	return parts.Serve(stop, func() error { return server.Serve(listener) }, func(ctx context.Context) error { return shutdown(ctx, server) })
}

// shutdown waits until the calls under way have ended, or until ctx ends.
func shutdown(ctx context.Context, server *grpc.Server) error {
	defer context.AfterFunc(ctx, server.Stop)()
	server.GracefulStop()
	return ctx.Err()
}

type bankServer struct {
	bankpb.UnimplementedBankServer
	bank bank.Bank
}

func (s bankServer) Debit(ctx context.Context, r *bankpb.DebitRequest) (*bankpb.DebitResponse, error) {
	// After the mark, no call repeats a debit with the same key, even if this process
	// dies.
	if err := idempotency.MarkEffect(ctx); err != nil {
		return nil, status.Error(codes.Unavailable, "not now")
	}
	balance, err := s.bank.Debit(ctx, r.GetAccountId())
	if err != nil {
		return nil, status.Error(codes.Internal, "the bank has failed")
	}
	return &bankpb.DebitResponse{Balance: balance}, nil
}

// userKey is the context key of the user, which authentication stores.
type userKey struct{}

func authenticate(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	users := map[string]string{"Bearer secret-of-alice": "alice", "Bearer secret-of-bob": "bob"}
	token := metadata.ValueFromIncomingContext(ctx, "authorization")
	if len(token) != 1 || users[token[0]] == "" {
		return nil, status.Error(codes.Unauthenticated, "log in")
	}
	return handler(context.WithValue(ctx, userKey{}, users[token[0]]), req)
}

func limited(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	ctx, cancel := context.WithTimeout(ctx, *service.Limit)
	defer cancel()
	return handler(ctx, req)
}

func recovered(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (reply any, err error) {
	defer func() {
		if v := recover(); v != nil {
			log.Println("panic in", info.FullMethod, v)
			reply, err = nil, status.Error(codes.Internal, "a mistake of ours")
		}
	}()
	return handler(ctx, req)
}
