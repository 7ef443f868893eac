package grpclock

import (
	"context"
	"fmt"
	"strings"
	"time"

	"google.golang.org/grpc"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/adapter"
	"github.com/interlock-go/interlock/internal/grpcx"
)

// Rules maps a full method, "/package.Service/Method", to its rule. A method that
// is not in the map runs without a lock, and so do all methods for a nil map.
// [FromProto] makes the rules that protos declare; write a map literal for protos
// that are not yours.
type Rules map[string]*core.Guard

// serialize returns the interceptor that runs unary methods under their locks.
func serialize(rules Rules, opts ...Option) grpc.UnaryServerInterceptor {
	o := newOptions(opts)
	methods := newMethods(rules)
	return func(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (reply any, err error) {
		ctx = grpcx.WithHeld(ctx)
		m := methods[fullMethod(info.FullMethod)]
		if m == nil {
			reply, err = handler(ctx, req)
			return reply, grpcx.HandedOn(ctx, fullMethod(info.FullMethod), err)
		}
		q := &grpcx.Request{Method: m, Ctx: ctx, Msg: req}
		refusal := m.Guard.Do(ctx, q, func(ctx context.Context) bool {
			reply, err = handler(ctx, req)
			return err == nil && adapter.BeginAnswer(ctx, true)
		})
		if refusal != nil {
			return nil, o.refuse(ctx, m.Name, refusal)
		}
		return reply, grpcx.HandedOn(ctx, m.Name, err)
	}
}

// serializeStreams returns the interceptor that runs streams under their locks.
func serializeStreams(rules Rules, opts ...Option) grpc.StreamServerInterceptor {
	o := newOptions(opts)
	methods := newMethods(rules)
	return func(srv any, ss grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) (err error) {
		ctx := grpcx.WithHeld(ss.Context())
		m := methods[fullMethod(info.FullMethod)]
		if m == nil {
			return grpcx.HandedOn(ctx, fullMethod(info.FullMethod), handler(srv, grpcx.Passing{ServerStream: ss, Ctx: ctx}))
		}
		s := &grpcx.Stream{ServerStream: ss, Wait: o.firstMessage}
		refusal := m.Guard.Do(ctx, &grpcx.Request{Method: m, Ctx: ctx, Stream: s}, func(ctx context.Context) bool {
			s.Ctx = ctx
			err = handler(srv, s)
			return err == nil && adapter.BeginAnswer(ctx, true)
		})
		if refusal != nil {
			return o.refuse(ctx, m.Name, refusal)
		}
		return grpcx.HandedOn(ctx, m.Name, err)
	}
}

// Option configures [Protect]. Options do not change after construction.
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

// refuse answers with a refusal. Without an error the client would treat a call as a success
// although its handler never ran.
func (o *options) refuse(ctx context.Context, fullMethod string, refusal *core.Refusal) error {
	if err := o.render(ctx, fullMethod, refusal); err != nil {
		return err
	}
	return Status(ctx, fullMethod, refusal)
}

// Render sets the function that makes the error of every refusal. f receives the
// call's context, so it can set trailers by [grpc.SetTrailer]. If f returns nil, the
// interceptor uses [Status]. f must be safe for concurrent use. Default, and if f is
// nil: Status.
func Render(f func(ctx context.Context, fullMethod string, refusal *core.Refusal) error) Option {
	return func(o *options) {
		if f != nil {
			o.render = f
		}
	}
}

// FirstMessageWait limits how long the interceptor waits for the first message of a
// stream if the key is in that message. After d the stream is refused
// (DEADLINE_EXCEEDED). The stream holds no lock meanwhile. Unary methods ignore the
// option. Default, and if d is not positive: 10 s.
func FirstMessageWait(d time.Duration) Option {
	return func(o *options) {
		if d > 0 {
			o.firstMessage = d
		}
	}
}

// fullMethod is the name that the rules have. grpc before 1.79.3 serves a call with a path
// that lacks the slash in front (CVE-2026-33186), which must not run without its lock.
func fullMethod(path string) string {
	if strings.HasPrefix(path, "/") {
		return path
	}
	return "/" + path
}

// newMethods prepares all that does not depend on the call.
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

// Domain is the domain of the ErrorInfo in every refusal: "interlock".
const Domain = grpcx.Domain

// Status makes the status error of a refusal. The error has the code of the reason,
// fixed text, and an ErrorInfo with the reason and the full method. If the client
// may send the same call again, the error has RetryInfo with the least pause
// ([core.Refusal.RetryAfter]). After a lost lease Status sets the trailer
// grpc-retry-pushback-ms to -1 on the call of ctx, so that no client sends the call again. Status is the default of [Render]; a
// function for Render can call it.
func Status(ctx context.Context, fullMethod string, refusal *core.Refusal) error {
	return grpcx.Status(ctx, fullMethod, refusal)
}
