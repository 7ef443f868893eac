package grpclock

import (
	"context"
	"fmt"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	"github.com/interlock-go/interlock/core/adapter"
	"github.com/interlock-go/interlock/core/idempotency"
	"github.com/interlock-go/interlock/core/idempotency/endpoint"
	"github.com/interlock-go/interlock/internal/grpcx"
)

// Methods maps a full method, "/package.Service/Method", to the engine that makes
// the unary method idempotent. A method that is not in the map runs as it is. A client
// that calls again gets the stored reply or status of the first call (see the package
// comment). The key is the field request_id of the message (AIP-155). If the message has
// no such field, or the field is empty, the key is the metadata idempotency-key
// ([IdempotencyKey]).
//
// Options that differ between methods go to [idempotency.Engine.With]:
//
//	grpclock.Methods{"/bank.v1.Bank/Pay": engine.With(idempotency.Under(debit))}
type Methods map[string]*idempotency.Engine

// idempotentOnce returns the interceptor that runs the handler once for each idempotency
// key.
func idempotentOnce(methods Methods, opts ...Option) grpc.UnaryServerInterceptor {
	o := newOptions(opts)
	known := make(map[string]*idempotent, len(methods))
	for name, engine := range methods {
		if engine == nil {
			panic(fmt.Sprintf("grpclock: the engine of %q is nil; idempotency.New makes one", name))
		}
		m := &idempotent{engine: engine, Method: &grpcx.Method{Name: name}}
		if desc := grpcx.FindMethod(protoregistry.GlobalFiles, name); desc != nil {
			if err := cannotBeIdempotent(desc); err != nil {
				panic(bad(name, err))
			}
			// If the type is not linked in, reply makes replays without it.
			m.output, _ = protoregistry.GlobalTypes.FindMessageByName(desc.Output().FullName())
		}
		known[name] = m
	}
	return func(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (reply any, err error) {
		m := known[fullMethod(info.FullMethod)]
		if m == nil {
			reply, err = handler(ctx, req)
			return reply, grpcx.HandedOn(ctx, fullMethod(info.FullMethod), err)
		}
		var sent *recorder
		verdict := m.engine.Do(ctx, &call{grpcx.Request{Method: m.Method, Ctx: ctx, Msg: req}}, endpoint.Handler{
			Run: func(ctx context.Context, attempt endpoint.Attempt) (endpoint.Response, bool) {
				sent = &recorder{method: m.Name}
				ctx = grpc.NewContextWithServerTransportStream(ctx, sent)
				reply, err = handler(ctx, req)
				err = grpcx.HandedOn(ctx, m.Name, err)
				return sent.answer(attempt, reply, err), err == nil
			},
			Pass: func(ctx context.Context) bool {
				reply, err = handler(ctx, req)
				err = grpcx.HandedOn(ctx, m.Name, err)
				return err == nil && adapter.BeginAnswer(ctx, true)
			},
		})
		switch {
		case verdict.Refusal != nil:
			return nil, o.refuse(ctx, m.Name, verdict.Refusal)
		case verdict.Replay != nil:
			return m.replay(ctx, verdict.Replay)
		case sent != nil:
			sent.send(ctx)
		}
		return reply, err
	}
}

// idempotent holds the facts of a method that are known before a call.
type idempotent struct {
	*grpcx.Method
	engine *idempotency.Engine
	output protoreflect.MessageType // of the reply; nil if none is linked in
}

// call is the call that the engine sees.
type call struct{ grpcx.Request }

// Protocol returns [endpoint.GRPC].
func (c *call) Protocol() string { return endpoint.GRPC }

// Target returns the full method.
func (c *call) Target() (method, path, query string) { return "", c.Name, "" }

// Origin returns the authority and the full method.
func (c *call) Origin() (host, path, query string) {
	if authority := c.Header("Host"); len(authority) > 0 {
		host = authority[0]
	}
	return host, c.Name, ""
}

// Key returns the field request_id, or else the metadata [IdempotencyKey].
func (c *call) Key() (string, error) {
	if msg, err := c.Message(); err == nil {
		if id := grpcx.RequestID(msg); id != "" {
			return endpoint.ParseKey([]string{id})
		}
	}
	return endpoint.ParseKey(c.Header(IdempotencyKey))
}
