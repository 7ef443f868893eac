package connectlock

import (
	"context"
	"maps"

	"connectrpc.com/connect/v2"
	"google.golang.org/grpc"

	"github.com/interlock-go/interlock/grpclock"
	"github.com/interlock-go/interlock/internal/grpcx"
)

// Protection has the interceptor of a server for its rules and its idempotent methods.
// [Protect] makes one. A Protection is safe for concurrent use.
type Protection struct {
	rules   grpclock.Rules
	methods grpclock.Methods
	grpc    *grpclock.Protection
}

// Protect returns the protection of a server: the methods in rules run under their locks,
// and the handlers of methods run once for each idempotency key, with the stored reply or
// error for a client that calls again, by any protocol. Each of the two may be nil. A method
// that is in neither runs as it is. Protect copies both maps: later changes have no effect.
//
//	protection := connectlock.Protect(rules, methods)
//	server := connect.NewServer(authenticate, protection.Interceptor())
//	bankv1connect.RegisterBankHandler(server, bank)
//	err := protection.Validate(server)
//
// Package grpclock keeps the same records: a server of grpc-go on the same store replays
// an answer that this server has stored. Protect panics where [grpclock.Protect] does.
func Protect(rules grpclock.Rules, methods grpclock.Methods, opts ...grpclock.Option) *Protection {
	return &Protection{maps.Clone(rules), maps.Clone(methods), grpclock.Protect(rules, methods, opts...)}
}

// Interceptor returns the interceptor of the server. It chains with others
// ([connect.NewServer]); put it after authentication. [grpclock.Protection.Unary] says
// more about the order of interceptors and about time limits. The interceptor is safe for
// concurrent use.
//
// A unary handler's reply is sent after the lock was released. Response headers and
// trailers that an idempotent handler sets are stored with the answer, and are not sent
// with a refusal. A stream holds its locks
// until the handler returns. If the rule of a stream needs a field, the interceptor
// receives the first message before the handler runs, and the handler's first Receive
// returns it; [grpclock.FirstMessageWait] limits the wait. After the lease is lost,
// Receive and Send return the error of the stream's context.
func (p *Protection) Interceptor() connect.ServerInterceptor {
	unary, streams := p.grpc.Unary(), p.grpc.Stream()
	return func(next connect.ServerFunc) connect.ServerFunc {
		return func(ctx context.Context, spec connect.Spec, stream connect.ServerStream) error {
			c := newCall(ctx, spec, stream)
			idempotent := p.methods[spec.Procedure] != nil
			switch {
			case !idempotent && p.rules[spec.Procedure] == nil:
				return c.pass(next)
			case idempotent && spec.StreamType != connect.StreamTypeUnary:
				return errStream // its proto is not linked in, and Validate was not called
			case idempotent:
				return c.unary(unary, c.noted(next))
			case spec.StreamType == connect.StreamTypeUnary:
				return c.unary(unary, next)
			}
			info := &grpc.StreamServerInfo{FullMethod: spec.Procedure}
			return outward(streams(nil, &grpcStream{connect: stream, ctx: c.ctx}, info, func(_ any, s grpc.ServerStream) error {
				return inward(next(s.Context(), spec, leased{stream, s}))
			}))
		}
	}
}

// Validate compares the protection with a server. Register all services first, and call
// Validate before the server serves. It returns [core.ErrConfig] for everything that
// [grpclock.Protection.Validate] refuses. The server knows the protos of its methods
// ([connect.Spec.Schema]). Validate also looks at those.
func (p *Protection) Validate(server *connect.Server, opts ...grpclock.ProtoOption) error {
	return p.grpc.Validate(services{server}, opts...)
}

// errStream keeps a stream from running unprotected.
var errStream = connect.NewError(connect.CodeInternal, "The method is a stream, and only unary methods can be idempotent.")

// pass runs a method that the interceptor does not guard. The error that the handler hands
// on from another server's guard loses its retry hint: this handler has run.
func (c *call) pass(next connect.ServerFunc) error {
	ctx := grpcx.WithHeld(c.ctx)
	return outward(grpcx.HandedOn(ctx, c.spec.Procedure, inward(next(ctx, c.spec, c.stream))))
}

// unary runs a unary method in an interceptor of gRPC's. The interceptor is given the
// message, and the reply is sent when the interceptor has let it through.
func (c *call) unary(in grpc.UnaryServerInterceptor, next connect.ServerFunc) error {
	req, err := c.receive()
	if err != nil {
		return err
	}
	info := &grpc.UnaryServerInfo{FullMethod: c.spec.Procedure}
	reply, err := in(c.ctx, req, info, func(ctx context.Context, _ any) (any, error) {
		u := &exchange{ServerStream: c.stream, first: req}
		err := next(ctx, c.spec, u)
		return u.reply, inward(err)
	})
	if err != nil || reply == nil {
		return outward(err)
	}
	return c.stream.Send(reply)
}
