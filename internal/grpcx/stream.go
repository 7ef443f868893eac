package grpcx

import (
	"context"
	"errors"
	"fmt"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/adapter"
)

// Stream is a server's stream under a lease, with its first message if that was
// received for the key.
type Stream struct {
	grpc.ServerStream
	Ctx   context.Context // the lease's
	Wait  time.Duration
	first proto.Message // received, and not yet replayed
	err   error         // why it could not be received; it stays so
}

// receive returns the first message. A stream cannot end a RecvMsg alone, so
// RecvMsg waits on a separate goroutine. It ends with the stream, and the stream
// ends when the interceptor returns.
func (s *Stream) receive(t protoreflect.MessageType) (proto.Message, error) {
	if t == nil {
		return nil, errNoProto
	}
	if s.first == nil && s.err == nil {
		first := t.New().Interface()
		received := make(chan error, 1)
		go func() { received <- s.ServerStream.RecvMsg(first) }()
		timer := time.NewTimer(s.Wait)
		defer timer.Stop()
		select {
		case s.err = <-received:
		case <-timer.C:
			// Never replaced by a later result of the goroutine: it may still write to the
			// message, and two must not receive at a time.
			s.err = status.Error(codes.DeadlineExceeded, "The first message did not come in time.")
		}
		if s.err == nil {
			s.first = first
		}
	}
	if s.err != nil && s.ServerStream.Context().Err() == nil {
		reason := adapter.ErrBody
		if status.Code(s.err) == codes.DeadlineExceeded {
			reason = adapter.ErrBodyTimeout
		}
		return nil, fmt.Errorf("%w: first message: %w", reason, s.err)
	}
	return s.first, s.err
}

// Context returns the lease's context.
func (s *Stream) Context() context.Context { return s.Ctx }

// RecvMsg receives into m, first of all the message received for the key. A
// message that arrives after the lease was lost is not handed over: the handler
// would act on it without its lock.
func (s *Stream) RecvMsg(m any) error {
	switch first := s.first; {
	case s.err != nil:
		return s.err
	case first != nil:
		s.first = nil
		to, ok := m.(proto.Message)
		if !ok || to.ProtoReflect().Descriptor() != first.ProtoReflect().Descriptor() {
			return status.Errorf(codes.Internal, "The first message is a %s.", first.ProtoReflect().Descriptor().FullName())
		}
		proto.Reset(to)
		proto.Merge(to, first)
	default:
		if err := s.ServerStream.RecvMsg(m); err != nil {
			return err
		}
	}
	return s.over()
}

// SendMsg sends while the lease is good. It still is when a newer call has ended the context.
func (s *Stream) SendMsg(m any) error {
	if err := s.over(); err != nil && !errors.Is(context.Cause(s.Ctx), core.ErrSuperseded) {
		return err
	}
	return s.ServerStream.SendMsg(m)
}

// over returns the status of a context that has ended. A handler that released
// its lease itself has done so to go on without.
func (s *Stream) over() error {
	err := s.Ctx.Err()
	if err == nil || errors.Is(context.Cause(s.Ctx), core.ErrReleased) {
		return nil
	}
	return status.FromContextError(err).Err()
}
