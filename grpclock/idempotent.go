package grpclock

import (
	"context"
	"errors"
	"fmt"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/idempotency"
	"github.com/interlock-go/interlock/internal/grpcx"
)

// Methods says which unary methods are idempotent, by full method:
// "/package.Service/Method". Others run as they are. What differs from method to
// method its engine is told:
//
//	grpclock.Methods{"/bank.v1.Bank/Pay": engine.With(idempotency.Under(debit))}
type Methods map[string]*idempotency.Engine

// Idempotent returns an interceptor that carries a call out once for each
// idempotency key, and answers those that are sent again with the reply or status
// of the first: see the package comment. The key is the field request_id of the
// message (AIP-155), or where it is empty or there is none the metadata
// idempotency-key.
//
// It chains with others and goes behind authentication, and in front of what
// makes statuses of errors that are none, if those are to be stored. It panics if
// an engine is nil or a method is known to be a stream, by its name: a stream
// cannot be replayed, and would run unprotected. Methods.Validate finds those
// whose proto is not linked in.
func Idempotent(methods Methods, opts ...Option) grpc.UnaryServerInterceptor {
	o := newOptions(opts)
	known := make(map[string]*idempotent, len(methods))
	for name, engine := range methods {
		if engine == nil {
			panic(fmt.Sprintf("grpclock: the engine of %q is nil; idempotency.New makes one", name))
		}
		m := &idempotent{engine: engine, Method: &grpcx.Method{Name: name}}
		if desc := grpcx.FindMethod(protoregistry.GlobalFiles, name); desc != nil {
			if desc.IsStreamingClient() || desc.IsStreamingServer() {
				panic(bad(name, errStream))
			}
			// Without the type, replays are made without it: see reply.
			m.output, _ = protoregistry.GlobalTypes.FindMessageByName(desc.Output().FullName())
		}
		known[name] = m
	}
	return func(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (reply any, err error) {
		m := known[info.FullMethod]
		if m == nil {
			reply, err = handler(ctx, req)
			return reply, grpcx.HandedOn(ctx, err)
		}
		var sent *recorder
		verdict := m.engine.Do(ctx, &call{grpcx.Request{Method: m.Method, Ctx: ctx, Msg: req}}, idempotency.Handler{
			Run: func(ctx context.Context, attempt *idempotency.Attempt) (idempotency.Response, bool) {
				sent = &recorder{method: info.FullMethod}
				ctx = grpc.NewContextWithServerTransportStream(ctx, sent)
				reply, err = handler(ctx, req)
				err = grpcx.HandedOn(ctx, err)
				return sent.answer(attempt, reply, err), err == nil //nolint:contextcheck // the attempt has the handler's
			},
			Pass: func(ctx context.Context) bool {
				reply, err = handler(ctx, req)
				err = grpcx.HandedOn(ctx, err)
				return err == nil && core.BeginAnswer(ctx, true)
			},
		})
		switch {
		case verdict.Refusal != nil:
			return nil, o.refuse(ctx, info.FullMethod, verdict.Refusal)
		case verdict.Replay != nil:
			return m.replay(ctx, verdict.Replay)
		case sent != nil:
			sent.send(ctx)
		}
		return reply, err
	}
}

// errStream is why a method cannot be idempotent.
var errStream = errors.New("it is a stream, and only unary methods can be idempotent")

// Validate holds the methods against a server with all its services registered,
// and returns core.ErrConfig, with their names, for those that it does not have
// and those that are streams. Call it before Serve.
func (m Methods) Validate(server interface {
	GetServiceInfo() map[string]grpc.ServiceInfo
},
) error {
	streams, errs := map[string]bool{}, []error(nil)
	for service, info := range server.GetServiceInfo() {
		for _, method := range info.Methods {
			streams["/"+service+"/"+method.Name] = method.IsClientStream || method.IsServerStream
		}
	}
	for name := range m {
		switch stream, served := streams[name]; {
		case !served:
			errs = append(errs, bad(name, errors.New("the server has no such method")))
		case stream:
			errs = append(errs, bad(name, errStream))
		}
	}
	return joined(errs)
}

// idempotent is what is known of a method before it is called.
type idempotent struct {
	*grpcx.Method
	engine *idempotency.Engine
	output protoreflect.MessageType // of the reply; nil if none is linked in
}

// call is a call for the engine.
type call struct{ grpcx.Request }

// Protocol returns GRPC.
func (c *call) Protocol() string { return idempotency.GRPC }

// Target returns the full method.
func (c *call) Target() (method, path, query string) { return "", c.Name, "" }

// Origin returns the authority and the full method.
func (c *call) Origin() (host, path, query string) {
	if authority := c.Header("Host"); len(authority) > 0 {
		host = authority[0]
	}
	return host, c.Name, ""
}

// Key returns the field request_id, or else the metadata.
func (c *call) Key() []string {
	if msg, err := c.Message(); err == nil {
		m := msg.ProtoReflect()
		f := m.Descriptor().Fields().ByName("request_id")
		if f != nil && f.Kind() == protoreflect.StringKind && !f.IsList() {
			if id := m.Get(f).String(); id != "" {
				return []string{id}
			}
		}
	}
	return c.Header(IdempotencyKey)
}
