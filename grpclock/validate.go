package grpclock

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/descriptorpb"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/adapter"
	"github.com/interlock-go/interlock/core/idempotency"
	"github.com/interlock-go/interlock/internal/grpcx"
)

// Validate compares the protection with a server. Register all services first, and call
// Validate before Serve. It returns [core.ErrConfig], with the name of each such method,
// if something declared would not be done:
//
//   - The proto of a registered method has the option interlock.v1.serialize, and neither
//     a rule nor the engine of the method ([idempotency.Under]) takes the lock.
//   - The server has a method of the protection, and the program never called
//     [Protection.Unary] or, for a stream, [Protection.Stream].
//   - The server does not have the method, or the request does not have a field that the
//     rule names, or the field cannot be part of a key.
//   - An idempotent method is a stream, or declares NO_SIDE_EFFECTS.
//
// A rule for a service that the server does not have is an error, unless a known
// proto has the method: a program may be linked with more services than it serves.
// If the proto of a registered service is not known ([Files]), Validate compares only
// the method's name and kind.
//
// Validate sees no caller that passes the interceptors, such as a grpc-gateway that was
// given the service itself; see the package comment.
func (p *Protection) Validate(server interface {
	GetServiceInfo() map[string]grpc.ServiceInfo
}, opts ...ProtoOption,
) error {
	o := newProtoOptions(opts)
	v := &validation{p, &o, server, server.GetServiceInfo(), map[string]grpc.MethodInfo{}}
	for service, info := range v.services {
		for _, method := range info.Methods {
			v.served["/"+service+"/"+method.Name] = method
		}
	}
	var errs []error
	add := func(name string, err error) {
		if err != nil {
			errs = append(errs, bad(name, err))
		}
	}
	for name, guard := range p.rules {
		add(name, v.rule(name, guard))
	}
	for name, engine := range p.methods {
		add(name, v.method(name, engine))
	}
	for name, info := range v.served {
		add(name, v.taken(name, info))
	}
	return joined(errs)
}

// validation compares a protection with one server.
type validation struct {
	*Protection
	*protoOptions
	server   any
	services map[string]grpc.ServiceInfo
	served   map[string]grpc.MethodInfo // by the full method
}

// find returns the proto of a method, nil if it is not known. A server of connect knows the
// protos of its methods itself.
func (v *validation) find(fullMethod string) protoreflect.MethodDescriptor {
	if desc := grpcx.FindMethod(v.files, fullMethod); desc != nil {
		return desc
	}
	if server, ok := v.server.(interface {
		Method(fullMethod string) protoreflect.MethodDescriptor
	}); ok {
		return server.Method(fullMethod)
	}
	return nil
}

// rule checks a rule.
func (v *validation) rule(fullMethod string, guard *core.Guard) error {
	service, name, ok := grpcx.SplitMethod(fullMethod)
	if !ok {
		return errors.New("a rule is for a full method, /package.Service/Method")
	}
	desc := v.find(fullMethod)
	if info, served := v.services[service]; served {
		known := make([]string, len(info.Methods))
		for i, m := range info.Methods {
			known[i] = m.Name
		}
		if !slices.Contains(known, name) {
			return fmt.Errorf("service %s has no such method; it has %s", service, strings.Join(known, ", "))
		}
	} else if desc == nil {
		if sd := grpcx.FindService(v.files, service); sd != nil {
			return fmt.Errorf("service %s has no such method; it has %s", service, grpcx.Names(sd.Methods()))
		}
		return fmt.Errorf("no such service; registered are %s", strings.Join(slices.Sorted(maps.Keys(v.services)), ", "))
	}
	if desc == nil {
		return nil
	}
	return checkFields(guard, desc.Input())
}

// method checks an idempotent method.
func (v *validation) method(fullMethod string, engine *idempotency.Engine) error {
	info, served := v.served[fullMethod]
	if !served {
		return errors.New("the server has no such method")
	}
	desc := v.find(fullMethod)
	if err := cannotBeIdempotent(desc); err != nil {
		return err
	}
	guard := engine.Guard()
	switch {
	case info.IsClientStream || info.IsServerStream:
		return errStream
	case desc == nil || guard == nil:
		return nil
	}
	return checkFields(guard, desc.Input())
}

// taken checks that the server applies the declaration of one of its methods.
func (v *validation) taken(fullMethod string, info grpc.MethodInfo) error {
	rule, engine := v.rules[fullMethod], v.methods[fullMethod]
	stream := info.IsClientStream || info.IsServerStream
	desc := v.find(fullMethod)
	switch {
	case (rule != nil || engine != nil) && !stream && !v.unaryTaken.Load():
		return errors.New("it is protected, and the program never asked for the interceptor of its server: Unary (with connect, Interceptor)")
	case rule != nil && stream && !v.streamTaken.Load():
		return errors.New("it is a stream with a rule, and the program never asked for the interceptor of its server's streams: Stream (with connect, Interceptor)")
	case desc == nil || rule != nil || engine != nil && engine.Guard() != nil:
		return nil
	}
	if declared, _, err := declaration(desc); err != nil || declared == nil {
		return err
	}
	return errors.New("its proto declares a lock, and nothing takes it: FromProto makes the rules that protos declare, " +
		"for Protect or for idempotency.Under")
}

// cannotBeIdempotent says why a method cannot be idempotent. It returns nil if the method
// can be, and if its proto is not known.
func cannotBeIdempotent(desc protoreflect.MethodDescriptor) error {
	if desc == nil {
		return nil
	}
	if desc.IsStreamingClient() || desc.IsStreamingServer() {
		return errStream
	}
	options, _ := desc.Options().(*descriptorpb.MethodOptions)
	if options.GetIdempotencyLevel() == descriptorpb.MethodOptions_NO_SIDE_EFFECTS {
		return errPure
	}
	return nil
}

var (
	errStream = errors.New("it is a stream, and only unary methods can be idempotent")
	errPure   = errors.New("idempotency_level is NO_SIDE_EFFECTS: a call that changes nothing needs no key, and clients send none; " +
		"drop one of the two")
)

// checkFields checks that the request message has the fields of a rule's
// placeholders.
func checkFields(guard *core.Guard, input protoreflect.MessageDescriptor) error {
	for _, p := range guard.Placeholders() {
		switch p.Source {
		case adapter.SourceParam:
			field, err := grpcx.Resolve(input, p.Name)
			if err == nil {
				err = field.Fits(core.Form(p.Form))
			}
			if err != nil {
				return fmt.Errorf("{%s}: %w", p.Name, err)
			}
		case adapter.SourceQuery:
			return fmt.Errorf("{query.%s}: a call has no query parameters; accepted are {field}, {header.Name} and {ctx.name}", p.Name)
		}
	}
	return nil
}
