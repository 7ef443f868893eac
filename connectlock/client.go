package connectlock

import (
	"context"
	"errors"
	"sync"

	"connectrpc.com/connect/v2"
	"google.golang.org/grpc"

	"github.com/interlock-go/interlock/grpclock"
)

// UnaryClientRetry returns an interceptor for clients that sends a unary call again if the
// server refused it with RetryInfo: the handler did not run. Servers of package grpclock and
// of this package are the same to it. What [grpclock.UnaryClientRetry] says of pauses, tries
// and deadlines holds here too. Streams pass. The interceptor is safe for concurrent use.
//
// Put an interceptor that sets the header Idempotency-Key in front, or each try has another
// key. Interceptors behind UnaryClientRetry see each try. Response headers and trailers
// come from the last try.
func UnaryClientRetry(opts ...grpclock.RetryOption) connect.ClientInterceptor {
	retry := grpclock.UnaryClientRetry(opts...)
	return func(next connect.ClientFunc) connect.ClientFunc {
		return func(ctx context.Context, spec connect.Spec) (connect.ClientStream, error) {
			if spec.StreamType != connect.StreamTypeUnary {
				return next(ctx, spec)
			}
			stream, err := next(ctx, spec)
			if err != nil {
				return nil, err
			}
			return &tries{try: stream, ctx: ctx, spec: spec, next: next, retry: retry}, nil
		}
	}
}

// tries is a unary call that may be sent several times.
type tries struct {
	ctx   context.Context
	spec  connect.Spec
	next  connect.ClientFunc
	retry grpc.UnaryClientInterceptor
	req   any
	begun bool // Receive was called

	mu     sync.Mutex // Close may be called while Receive begins another try
	try    connect.ClientStream
	closed bool
}

// latest returns the latest try.
func (t *tries) latest() connect.ClientStream {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.try
}

// SendHeaders implements connect.ClientStream.
func (t *tries) SendHeaders() error { return t.latest().SendHeaders() }

// Send sends the message in the first try, and keeps it for others.
func (t *tries) Send(req any) error {
	t.req = req
	return t.latest().Send(req)
}

// CloseSend implements connect.ClientStream.
func (t *tries) CloseSend() error { return t.latest().CloseSend() }

// Receive receives the reply, of the last try if there are several.
func (t *tries) Receive(reply any) error {
	if t.begun {
		return t.latest().Receive(reply)
	}
	t.begun = true
	first := true
	return outward(t.retry(t.ctx, t.spec.Procedure, nil, nil, nil,
		func(context.Context, string, any, any, *grpc.ClientConn, ...grpc.CallOption) error {
			if !first {
				if err := t.again(); err != nil {
					return told(err)
				}
			}
			first = false
			return told(t.latest().Receive(reply))
		}))
}

// Close closes the latest try, and lets no other begin.
func (t *tries) Close() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.closed = true
	return t.try.Close()
}

// again begins another try.
func (t *tries) again() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return connect.NewError(connect.CodeCanceled, "The call was closed.")
	}
	_ = t.try.Close() // its error is what ended the try
	if info, ok := connect.CallInfoForClientContext(t.ctx); ok {
		takeBack(info.ResponseHeader(), nil)
		takeBack(info.ResponseTrailer(), nil)
	}
	stream, err := t.next(t.ctx, t.spec)
	if err != nil {
		return err
	}
	t.try = stream
	return errors.Join(stream.Send(t.req), stream.CloseSend())
}
