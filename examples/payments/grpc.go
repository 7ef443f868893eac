package main

import (
	"context"
	"errors"
	"net"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/reflection"
	"google.golang.org/grpc/status"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/examples/payments/paymentspb"
	"github.com/interlock-go/interlock/grpclock"
)

// grpcFrontend is the bank as a gRPC service. Its proto says which methods need
// which locks, and one interceptor takes them.
func grpcFrontend(ctx context.Context, addr string, s *service) (*frontend, error) {
	// All methods with the option interlock.v1.serialize. The proto does not say how
	// long they wait, because a flag sets that here.
	rules, err := grpclock.FromProto(s.locker, grpclock.RuleOptions(core.Wait(s.wait)))
	if err != nil {
		return nil, err
	}
	// Payments have no lock in the proto: it is taken once their key is claimed.
	once := grpclock.Methods{paymentspb.Payments_Pay_FullMethodName: s.payments}
	protection := grpclock.Protect(rules, once)
	// From the outside in. Work that needs no lock is done before the lock is taken.
	server := grpc.NewServer(grpc.ChainUnaryInterceptor(
		s.admitCall,
		protection.Unary(),
		s.answerCall, // after it: the stored status is the client's status
	))
	paymentspb.RegisterPaymentsServer(server, s)
	reflection.Register(server) // for tools such as grpcurl
	// A rule with a field that the message does not have fails here, at start-up, and not at
	// the first call.
	if err := protection.Validate(server); err != nil {
		return nil, err
	}
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", addr)
	if err != nil {
		return nil, err
	}
	return &frontend{
		name: "grpc",
		addr: listener.Addr(),
		serve: func() error {
			if err := server.Serve(listener); !errors.Is(err, grpc.ErrServerStopped) {
				return err
			}
			return nil
		},
		drain: func(ctx context.Context) error {
			// GracefulStop waits for the calls under way without a limit; Stop cancels them,
			// and makes it return.
			defer context.AfterFunc(ctx, server.Stop)()
			server.GracefulStop()
			_ = listener.Close() // a server that was never served does not know it
			return ctx.Err()
		},
	}, nil
}

// admitCall refuses invalid calls before they wait for a lock, as the routes of REST do.
// It stores a payment's order in the context.
func (s *service) admitCall(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	err := check(req)
	if r, ok := req.(*paymentspb.PayRequest); ok && err == nil {
		md, _ := metadata.FromIncomingContext(ctx)
		ctx, err = s.admit(ctx, r, md.Get)
	}
	if err != nil {
		return nil, s.statusOf(ctx, err)
	}
	return handler(ctx, req)
}

// answerCall makes statuses from the bank's errors. It is outside the lock's
// interceptor, which must see the unchanged errors of handlers, and its own errors
// are statuses already.
func (s *service) answerCall(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	reply, err := handler(ctx, req)
	if err != nil {
		return nil, s.statusOf(ctx, err)
	}
	return reply, nil
}

// statusOf returns the status of an error from any source.
func (s *service) statusOf(ctx context.Context, err error) error {
	if _, ok := status.FromError(err); ok { // the lock's refusal
		return err
	}
	if errors.Is(err, context.Cause(ctx)) { // the client has gone, or its time has ended
		return status.FromContextError(ctx.Err()).Err()
	}
	r := refusalFor(err)
	if r.code == codes.Internal || r.code == codes.Unavailable {
		s.log.ErrorContext(ctx, "call failed", "error", err)
	}
	// A client tells the two ABORTED apart by the domain of the ErrorInfo: with
	// the lock's RetryInfo nothing was done, and trying again is welcome.
	st := status.New(r.code, r.text)
	if detailed, err := st.WithDetails(&errdetails.ErrorInfo{Reason: r.reason, Domain: "payments.example"}); err == nil {
		st = detailed
	}
	return st.Err()
}
