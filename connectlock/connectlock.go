package connectlock

import (
	"context"
	"maps"

	"connectrpc.com/connect/v2"
	"google.golang.org/grpc"

	"github.com/interlock-go/interlock/grpclock"
	"github.com/interlock-go/interlock/internal/grpcx"
)

// Serialize returns an interceptor that runs the methods in rules under their locks:
// unary methods and streams of all kinds. A method that is not in rules runs without a
// lock. The interceptor chains with others ([connect.NewServer]); put it behind
// authentication. It is safe for concurrent use. It copies rules: later changes have no
// effect.
//
// A unary handler's reply is sent after the lock was released. A stream holds its locks
// until the handler returns. If the rule of a stream needs a field, the interceptor
// receives the first message before the handler runs, and the handler's first Receive
// returns it; [grpclock.FirstMessageWait] limits the wait. After the lease is lost,
// Receive and Send return the error of the stream's context.
//
// Serialize panics if a rule is nil.
func Serialize(rules grpclock.Rules, opts ...grpclock.Option) connect.ServerInterceptor {
	rules = maps.Clone(rules)
	unary := grpclock.UnaryServerInterceptor(rules, opts...)
	streams := grpclock.StreamServerInterceptor(rules, opts...)
	return func(next connect.ServerFunc) connect.ServerFunc {
		return func(ctx context.Context, spec connect.Spec, stream connect.ServerStream) error {
			c := newCall(ctx, spec, stream)
			switch {
			case rules[spec.Procedure] == nil:
				return c.pass(ctx, next)
			case spec.StreamType == connect.StreamTypeUnary:
				return c.unary(unary, next)
			}
			info := &grpc.StreamServerInfo{FullMethod: spec.Procedure}
			return outward(streams(nil, &grpcStream{connect: stream, ctx: c.ctx}, info, func(_ any, s grpc.ServerStream) error { //nolint:contextcheck // c.ctx is ctx with the metadata
				return inward(next(s.Context(), spec, leased{stream, s}))
			}))
		}
	}
}

// Idempotent returns an interceptor that runs the handlers of methods once for each
// idempotency key, and sends the stored reply or error to a client that calls again, by
// any protocol. The key is the field request_id of the message, or else the header
// Idempotency-Key. Package grpclock keeps the same records: a server of grpc-go on the same
// store replays what this server has stored.
//
// What [grpclock.Idempotent] says of the order of interceptors and of time limits holds
// here too. Response headers and trailers that the handler sets are stored with the
// answer, and are not sent with a refusal. A method that declares NO_SIDE_EFFECTS passes
// without a key, so its GET requests do.
//
// The interceptor is safe for concurrent use. It copies methods: later changes have no
// effect. Idempotent panics if an engine is nil or if a linked proto says that a method is
// a stream.
func Idempotent(methods grpclock.Methods, opts ...grpclock.Option) connect.ServerInterceptor {
	methods = maps.Clone(methods)
	idempotent := grpclock.Idempotent(methods, opts...)
	return func(next connect.ServerFunc) connect.ServerFunc {
		return func(ctx context.Context, spec connect.Spec, stream connect.ServerStream) error {
			c := newCall(ctx, spec, stream)
			switch {
			case methods[spec.Procedure] == nil, spec.IdempotencyLevel == connect.IdempotencyNoSideEffects:
				return c.pass(ctx, next)
			case spec.StreamType != connect.StreamTypeUnary:
				return errStream // its proto is not linked in, and Validate was not called
			}
			return c.unary(idempotent, c.noted(next))
		}
	}
}

// errStream keeps a stream from running unprotected.
var errStream = connect.NewError(connect.CodeInternal, "The method is a stream, and only unary methods can be idempotent.")

// pass runs a method that the interceptor does not guard. The error that the handler hands
// on from another server's guard loses its retry hint: this handler has run.
func (c *call) pass(ctx context.Context, next connect.ServerFunc) error {
	return outward(grpcx.HandedOn(c.ctx, inward(next(ctx, c.spec, c.stream)))) //nolint:contextcheck // c.ctx is ctx with the metadata
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
