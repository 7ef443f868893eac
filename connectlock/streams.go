package connectlock

import (
	"context"

	"connectrpc.com/connect/v2"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
)

// exchange is the stream of a unary call. The message was received already, and the reply
// waits for the interceptor.
type exchange struct {
	connect.ServerStream
	first proto.Message // nil if the handler is to receive it
	reply any
}

// Receive returns the message that was received.
func (e *exchange) Receive(m any) error {
	first := e.first
	if first == nil {
		return e.ServerStream.Receive(m)
	}
	e.first = nil
	to, ok := m.(proto.Message)
	if !ok || to.ProtoReflect().Descriptor() != first.ProtoReflect().Descriptor() {
		return connect.Errorf(connect.CodeInternal, "The message is a %s.", first.ProtoReflect().Descriptor().FullName())
	}
	proto.Reset(to)
	proto.Merge(to, first)
	return nil
}

// Send keeps the reply.
func (e *exchange) Send(m any) error { e.reply = m; return nil }

// SendHeaders does nothing: the headers of a unary call leave with its answer.
func (e *exchange) SendHeaders() error { return nil }

// grpcStream is a stream of connect's as a stream of gRPC's. Metadata is set by the
// context, so the other methods are not called.
type grpcStream struct {
	grpc.ServerStream
	connect connect.ServerStream
	ctx     context.Context
}

func (s *grpcStream) Context() context.Context { return s.ctx }
func (s *grpcStream) RecvMsg(m any) error      { return s.connect.Receive(m) }
func (s *grpcStream) SendMsg(m any) error      { return s.connect.Send(m) }

// leased is a stream of connect's that receives and sends under the lease.
type leased struct {
	connect.ServerStream
	lease grpc.ServerStream
}

func (s leased) Receive(m any) error { return outward(s.lease.RecvMsg(m)) }
func (s leased) Send(m any) error    { return outward(s.lease.SendMsg(m)) }
