package connectlock

import (
	"strings"

	"connectrpc.com/connect/v2"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// services lists the services of a server as grpc.Server does.
type services struct{ server *connect.Server }

// GetServiceInfo returns the services that the checks of package grpclock read.
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

// Method returns the proto of a method, for the checks of package grpclock. It returns nil
// if the method has none.
func (s services) Method(fullMethod string) protoreflect.MethodDescriptor {
	for spec := range s.server.Specs() {
		if method, ok := spec.Schema.(protoreflect.MethodDescriptor); ok && spec.Procedure == fullMethod {
			return method
		}
	}
	return nil
}
