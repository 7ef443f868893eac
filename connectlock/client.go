package connectlock

import (
	"context"
	"errors"
	"sync"

	"connectrpc.com/connect/v2"
	"google.golang.org/grpc"

	"github.com/interlock-go/interlock/grpclock"
	"github.com/interlock-go/interlock/internal/uuid"
)

// UnaryClientRetry returns an interceptor for clients that sends a unary call again if the
// server refused it with RetryInfo: the handler did not run. Servers of package grpclock and
// of this package are the same to it. What [grpclock.UnaryClientRetry] says of pauses, tries
// and deadlines holds here too. Streams pass. The interceptor is safe for concurrent use.
//
// Put [UnaryClientIdempotencyKey] in front, or each try has another key. Interceptors behind
// UnaryClientRetry see each try. Response headers and trailers come from the last try.
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

// UnaryClientIdempotencyKey returns an interceptor for clients that gives each unary call
// the header Idempotency-Key, with a new UUID (RFC 9562, version 7), unless the caller has
// set the header:
//
//	ctx, info := connect.NewClientContext(ctx)
//	info.RequestHeader().Set("Idempotency-Key", key)
//
// A caller that keeps its key can send the call again after a crash. A key of the
// interceptor is for one call, also if the context is used for further calls. Streams and
// methods that declare NO_SIDE_EFFECTS get no key, so their GET requests can be cached. The
// interceptor is safe for concurrent use. Put it in front of [UnaryClientRetry]:
//
//	client := connect.NewClient(transport, connectlock.UnaryClientIdempotencyKey(), connectlock.UnaryClientRetry())
func UnaryClientIdempotencyKey() connect.ClientInterceptor {
	return func(next connect.ClientFunc) connect.ClientFunc {
		return func(ctx context.Context, spec connect.Spec) (connect.ClientStream, error) {
			info, ok := connect.CallInfoForClientContext(ctx)
			if !ok { // called without a client
				ctx, info = connect.NewClientContext(ctx)
			}
			header := info.RequestHeader()
			if header.Has(grpclock.IdempotencyKey) || spec.StreamType != connect.StreamTypeUnary || spec.IdempotencyLevel == connect.IdempotencyNoSideEffects {
				return next(ctx, spec)
			}
			header.Set(grpclock.IdempotencyKey, uuid.New())
			stream, err := next(ctx, spec)
			if err != nil {
				header.Delete(grpclock.IdempotencyKey)
				return nil, err
			}
			return &keyed{ClientStream: stream, header: header}, nil
		}
	}
}

// keyed is a unary call whose key leaves the header when the call ends.
type keyed struct {
	connect.ClientStream
	header *connect.Header
	mu     sync.Mutex // held while Receive may send the header
}

// Receive receives the reply, with which the call ends.
func (k *keyed) Receive(reply any) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	defer k.header.Delete(grpclock.IdempotencyKey)
	return k.ClientStream.Receive(reply)
}

// Close ends a call whose reply was not received. While Receive runs, the key is Receive's
// to delete.
func (k *keyed) Close() error {
	if k.mu.TryLock() {
		defer k.mu.Unlock()
		k.header.Delete(grpclock.IdempotencyKey)
	}
	return k.ClientStream.Close()
}
