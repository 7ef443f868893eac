package grpclock

import (
	"context"
	"errors"
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
// the unary method idempotent. A method that is not in the map runs as it is. Options
// that differ between methods go to [idempotency.Engine.With]:
//
//	grpclock.Methods{"/bank.v1.Bank/Pay": engine.With(idempotency.Under(debit))}
type Methods map[string]*idempotency.Engine

// Idempotent returns an interceptor that runs the handler once for each idempotency
// key. A client that sends the call again gets the stored reply or status of the
// first call (see the package comment). The key is the field request_id of the
// message (AIP-155). If the message has no such field, or the field is empty, the
// key is the metadata idempotency-key ([IdempotencyKey]).
//
// The interceptor chains with others and is safe for concurrent use. Put it behind
// authentication. Put it in front of interceptors that make statuses from other
// errors, if those statuses are to be stored. It copies methods: later changes have
// no effect.
//
// Put an interceptor that answers while the handler still runs (it sets a time
// limit and runs the handler on a goroutine of its own) in front of Idempotent, never
// behind it. Behind it, its DEADLINE_EXCEEDED would end the claim, and a retry would
// run beside the handler. [idempotency.MaxHold] bounds the handler itself.
//
// Idempotent panics if an engine is nil. It also panics, with the method's name, if
// a linked proto says that a method is a stream: a stream cannot be replayed, and
// would run unprotected. [Methods.Validate] finds streams whose proto is not linked
// into the program.
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
			// If the type is not linked in, reply makes replays without it.
			m.output, _ = protoregistry.GlobalTypes.FindMessageByName(desc.Output().FullName())
		}
		known[name] = m
	}
	return func(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (reply any, err error) {
		m := known[fullMethod(info.FullMethod)]
		if m == nil {
			reply, err = handler(ctx, req)
			return reply, grpcx.HandedOn(ctx, err)
		}
		var sent *recorder
		verdict := m.engine.Do(ctx, &call{grpcx.Request{Method: m.Method, Ctx: ctx, Msg: req}}, endpoint.Handler{
			Run: func(ctx context.Context, attempt endpoint.Attempt) (endpoint.Response, bool) {
				sent = &recorder{method: m.Name}
				ctx = grpc.NewContextWithServerTransportStream(ctx, sent)
				reply, err = handler(ctx, req)
				err = grpcx.HandedOn(ctx, err)
				return sent.answer(attempt, reply, err), err == nil
			},
			Pass: func(ctx context.Context) bool {
				reply, err = handler(ctx, req)
				err = grpcx.HandedOn(ctx, err)
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

// errStream is why a method cannot be idempotent.
var errStream = errors.New("it is a stream, and only unary methods can be idempotent")

// Validate compares the methods with a server. Register all services first, and call
// Validate before Serve. It returns [core.ErrConfig], with the names, if the server
// does not have a method, a method is a stream, or the request does not have a field that
// the rule of the engine names ([idempotency.Under]). Fields are compared if the proto of
// the method is known ([Files]).
//
// Validate sees no caller that passes the interceptors, such as a grpc-gateway that was
// given the service itself; see the package comment.
func (m Methods) Validate(server interface {
	GetServiceInfo() map[string]grpc.ServiceInfo
}, opts ...ProtoOption,
) error {
	o := newProtoOptions(opts)
	streams, errs := map[string]bool{}, []error(nil)
	for service, info := range server.GetServiceInfo() {
		for _, method := range info.Methods {
			streams["/"+service+"/"+method.Name] = method.IsClientStream || method.IsServerStream
		}
	}
	for name, engine := range m {
		switch stream, served := streams[name]; {
		case engine == nil:
			errs = append(errs, bad(name, errors.New("the engine is nil; idempotency.New makes one")))
		case !served:
			errs = append(errs, bad(name, errors.New("the server has no such method")))
		case stream:
			errs = append(errs, bad(name, errStream))
		default:
			desc, guard := grpcx.FindMethod(o.files, name), engine.Guard()
			if desc == nil || guard == nil {
				continue
			}
			if err := checkFields(guard, desc.Input()); err != nil {
				errs = append(errs, bad(name, err))
			}
		}
	}
	return joined(errs)
}

// idempotent holds what is known of a method before a call.
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
		m := msg.ProtoReflect()
		f := m.Descriptor().Fields().ByName("request_id")
		if f != nil && f.Kind() == protoreflect.StringKind && !f.IsList() {
			if id := m.Get(f).String(); id != "" {
				return endpoint.ParseKey([]string{id})
			}
		}
	}
	return endpoint.ParseKey(c.Header(IdempotencyKey))
}
