package grpclock

import (
	"context"
	"fmt"
	"time"

	"google.golang.org/grpc"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/internal/grpcx"
)

// Rules says which methods run under which guard, by full method:
// "/package.Service/Method". A method without a rule runs unlocked. FromProto
// makes the rules that protos declare; a map literal is for protos of others.
// The interceptors take a copy of what they are given.
type Rules map[string]*core.Guard

// UnaryServerInterceptor runs the unary methods that have a rule under their
// locks. It chains with others (grpc.ChainUnaryInterceptor) and goes behind
// authentication. It panics if a rule's guard is nil.
func UnaryServerInterceptor(rules Rules, opts ...Option) grpc.UnaryServerInterceptor {
	o := newOptions(opts)
	methods := newMethods(rules)
	return func(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (reply any, err error) {
		m := methods[info.FullMethod]
		if m == nil {
			reply, err = handler(ctx, req)
			return reply, grpcx.HandedOn(ctx, err)
		}
		q := &grpcx.Request{Method: m, Ctx: ctx, Msg: req}
		refusal := m.Guard.Do(ctx, q, func(ctx context.Context) bool {
			reply, err = handler(ctx, req)
			return err == nil && core.BeginAnswer(ctx, true)
		})
		if refusal != nil {
			return nil, o.refuse(ctx, m.Name, refusal)
		}
		return reply, grpcx.HandedOn(ctx, err)
	}
}

// StreamServerInterceptor runs the streams that have a rule under their locks,
// each for as long as it lasts. If the rule asks for a field, the first message
// is received before the handler runs and handed to it by its first RecvMsg; a
// rule on metadata alone waits for no message. When the lease is lost, RecvMsg
// and SendMsg fail like the stream's context. It panics if a rule's guard is
// nil.
func StreamServerInterceptor(rules Rules, opts ...Option) grpc.StreamServerInterceptor {
	o := newOptions(opts)
	methods := newMethods(rules)
	return func(srv any, ss grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) (err error) {
		ctx := ss.Context()
		m := methods[info.FullMethod]
		if m == nil {
			return grpcx.HandedOn(ctx, handler(srv, ss))
		}
		s := &grpcx.Stream{ServerStream: ss, Wait: o.firstMessage}
		refusal := m.Guard.Do(ctx, &grpcx.Request{Method: m, Ctx: ctx, Stream: s}, func(ctx context.Context) bool {
			s.Ctx = ctx
			err = handler(srv, s)
			return err == nil && core.BeginAnswer(ctx, true)
		})
		if refusal != nil {
			return o.refuse(ctx, m.Name, refusal)
		}
		return grpcx.HandedOn(ctx, err)
	}
}

// Option changes how streams are read and refusals are answered.
type Option func(*options)

type options struct {
	render       func(ctx context.Context, fullMethod string, refusal *core.Refusal) error
	firstMessage time.Duration
}

func newOptions(opts []Option) *options {
	o := &options{render: Status, firstMessage: 10 * time.Second}
	for _, opt := range opts {
		opt(o)
	}
	return o
}

// refuse answers a refusal. Without an error the client would take a call whose
// handler never ran for a success.
func (o *options) refuse(ctx context.Context, fullMethod string, refusal *core.Refusal) error {
	if err := o.render(ctx, fullMethod, refusal); err != nil {
		return err
	}
	return Status(ctx, fullMethod, refusal)
}

// Render replaces the errors that refusals become, all of them. It is given the
// call's context, so it can set trailers with grpc.SetTrailer. Where it returns
// nil, Status answers. Default, and for nil: Status.
func Render(f func(ctx context.Context, fullMethod string, refusal *core.Refusal) error) Option {
	return func(o *options) {
		if f != nil {
			o.render = f
		}
	}
}

// FirstMessageWait bounds how long a stream whose key is in its first message
// may keep it back; then it is refused as one without a key
// (INVALID_ARGUMENT). Nothing is locked meanwhile. Default, and for anything not
// positive: 10 s.
func FirstMessageWait(d time.Duration) Option {
	return func(o *options) {
		if d > 0 {
			o.firstMessage = d
		}
	}
}

// newMethods looks everything up that does not depend on the call.
func newMethods(rules Rules) map[string]*grpcx.Method {
	methods := make(map[string]*grpcx.Method, len(rules))
	for name, guard := range rules {
		if guard == nil {
			panic(fmt.Sprintf("grpclock: the rule of %q is nil; core.Serialize makes one", name))
		}
		methods[name] = grpcx.NewMethod(name, guard)
	}
	return methods
}

// Domain is the domain of the ErrorInfo in all refusals.
const Domain = grpcx.Domain

// Status is how refusals are rendered by default: the code of the reason, fixed
// text, ErrorInfo with the reason, and where the same call may be sent again
// RetryInfo and the trailer grpc-retry-pushback-ms; -1 there after a lost lease,
// so that nobody sends it again. A function for Render can fall back on it.
func Status(ctx context.Context, fullMethod string, refusal *core.Refusal) error {
	return grpcx.Status(ctx, fullMethod, refusal)
}
