package connectlock

import (
	"errors"
	"fmt"
	"strings"

	"connectrpc.com/connect/v2"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/grpclock"
	"github.com/interlock-go/interlock/grpclock/lockpb"
)

// Validate compares the rules of [Serialize] and the methods of [Idempotent] with a
// server. Register all services first, and call Validate before the server serves. Pass
// nil for an interceptor that the server does not have.
//
// Validate returns [core.ErrConfig] for everything that [grpclock.Rules.Validate] and
// [grpclock.Methods.Validate] refuse. It also returns core.ErrConfig for a method whose
// proto ([connect.Spec.Schema]) has the option interlock.v1.serialize while rules and
// methods do not have the method: it would run without its lock.
func Validate(server *connect.Server, rules grpclock.Rules, methods grpclock.Methods, opts ...grpclock.ProtoOption) error {
	served := services{server}
	errs := []error{rules.Validate(served, opts...), methods.Validate(served, opts...)}
	for spec := range server.Specs() {
		method, ok := spec.Schema.(protoreflect.MethodDescriptor)
		if ok && proto.HasExtension(method.Options(), lockpb.E_Serialize) &&
			rules[spec.Procedure] == nil && methods[spec.Procedure] == nil {
			errs = append(errs, fmt.Errorf("%w: method %q: its proto declares a lock, and no rule has it; "+
				"grpclock.FromProto makes the rules that protos declare", core.ErrConfig, spec.Procedure))
		}
	}
	return errors.Join(errs...)
}

// services lists the services of a server as grpc.Server does.
type services struct{ server *connect.Server }

// GetServiceInfo is what the checks of package grpclock read.
func (s services) GetServiceInfo() map[string]grpc.ServiceInfo {
	all := map[string]grpc.ServiceInfo{}
	for spec := range s.server.Specs() {
		service, name, _ := strings.Cut(strings.TrimPrefix(spec.Procedure, "/"), "/")
		info := all[service]
		info.Methods = append(info.Methods, grpc.MethodInfo{
			Name:           name,
			IsServerStream: spec.StreamType != connect.StreamTypeUnary, // which side it is, no check asks
		})
		all[service] = info
	}
	return all
}
