package grpclock

import (
	"context"
	"maps"
	"sync/atomic"

	"google.golang.org/grpc"

	"github.com/interlock-go/interlock/core"
)

// Protection has the interceptors of a server for its rules and its idempotent methods.
// [Protect] makes one. A Protection is safe for concurrent use.
type Protection struct {
	rules   Rules
	methods Methods
	unary   grpc.UnaryServerInterceptor
	stream  grpc.StreamServerInterceptor

	unaryTaken, streamTaken atomic.Bool // by the caller, who gives them to a server
}

// Protect returns the interceptors that run the methods in rules under their locks, and the
// handlers of methods once for each idempotency key. Each of the two may be nil. A method
// that is in neither runs as it is. Protect copies both maps: later changes have no effect.
//
//	protection := grpclock.Protect(rules, methods)
//	server := grpc.NewServer(
//		grpc.ChainUnaryInterceptor(authenticate, protection.Unary()),
//		grpc.ChainStreamInterceptor(authenticateStream, protection.Stream()),
//	)
//	bankpb.RegisterBankServer(server, bank)
//	err := protection.Validate(server)
//
// Protect panics if a rule or an engine is nil. It also panics, with the method's name, if
// a linked proto says that a method in methods is a stream, which cannot be replayed, or
// declares NO_SIDE_EFFECTS: a call without an effect needs no key. [Protection.Validate]
// finds such methods if their proto is not linked into the program.
func Protect(rules Rules, methods Methods, opts ...Option) *Protection {
	p := &Protection{rules: maps.Clone(rules), methods: maps.Clone(methods)}
	p.stream = serializeStreams(rules, opts...)
	behind := maps.Clone(rules)
	maps.DeleteFunc(behind, func(name string, rule *core.Guard) bool {
		return methods[name] != nil && methods[name].Guard() == rule && rule != nil // the engine takes it
	})
	lock, once := serialize(behind, opts...), idempotentOnce(methods, opts...)
	p.unary = func(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
		name := fullMethod(info.FullMethod)
		switch {
		case p.methods[name] == nil:
			return lock(ctx, req, info, handler)
		case behind[name] == nil:
			return once(ctx, req, info, handler)
		}
		return once(ctx, req, info, func(ctx context.Context, req any) (any, error) {
			return lock(ctx, req, info, handler)
		})
	}
	return p
}

// Unary returns the interceptor for unary methods. A replay takes no lock: the key comes
// first, the lock second. The interceptor chains with others
// ([grpc.ChainUnaryInterceptor]); put it after authentication. Put it in front of
// interceptors that make statuses from other errors, if those statuses are to be stored.
//
// Put an interceptor that answers while the handler still runs (it sets a time limit
// and runs the handler on a goroutine) in front of it, never after it. After it, its
// DEADLINE_EXCEEDED would end the claim, and a retry would run in parallel with the
// handler. [idempotency.MaxHold] bounds the handler itself.
func (p *Protection) Unary() grpc.UnaryServerInterceptor {
	p.unaryTaken.Store(true)
	return p.unary
}

// Stream returns the interceptor for streams ([grpc.ChainStreamInterceptor]). It runs
// the streams in the rules
// under their locks, from before the handler until the stream ends. If the rule
// needs a field, the interceptor receives the first message before the handler
// runs, and the handler's first RecvMsg returns it. A rule that needs only metadata
// waits for no message. After the lease is lost, RecvMsg and SendMsg return the
// error of the stream's context; after a newer call has come ([core.Newest]), RecvMsg does.
func (p *Protection) Stream() grpc.StreamServerInterceptor {
	p.streamTaken.Store(true)
	return p.stream
}

// ServerOptions returns both interceptors as options for [grpc.NewServer]. Interceptors
// of options in front of them see a call first.
func (p *Protection) ServerOptions() []grpc.ServerOption {
	return []grpc.ServerOption{grpc.ChainUnaryInterceptor(p.Unary()), grpc.ChainStreamInterceptor(p.Stream())}
}
