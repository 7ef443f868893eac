package connectlock

import (
	"context"
	"errors"
	"strings"
	"sync"

	"connectrpc.com/connect/v2"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/grpclock"
	"github.com/interlock-go/interlock/internal/grpcx"
)

// UnaryClientRetry returns an interceptor for clients that sends a unary call again if the
// server refused it with RetryInfo: the handler did not run. Servers of package grpclock and
// of this package are the same to it. What [grpclock.UnaryClientRetry] says of pauses, tries
// and deadlines holds here too. A stream is begun once, and gets the headers of
// [grpclock.StreamClientHeld]. The interceptor is safe for concurrent use.
//
// Put [UnaryClientIdempotencyKey] in front, or each try has another key. Interceptors after
// UnaryClientRetry see each try. Response headers and trailers come from the last try.
func UnaryClientRetry(opts ...grpclock.RetryOption) connect.ClientInterceptor {
	retry := grpclock.UnaryClientRetry(opts...)
	return func(next connect.ClientFunc) connect.ClientFunc {
		return func(ctx context.Context, spec connect.Spec) (connect.ClientStream, error) {
			ctx, err := holding(ctx, retry)
			if err != nil {
				return nil, err
			}
			stream, err := next(ctx, spec)
			if err != nil || spec.StreamType != connect.StreamTypeUnary {
				return stream, err
			}
			return &tries{try: stream, ctx: ctx, spec: spec, next: next, retry: retry}, nil
		}
	}
}

// holding sets the headers [core.HeldHeader] and [core.FencesHeader] as the interceptor of gRPC
// would. The interceptor returns the error: the call is not sent.
func holding(ctx context.Context, retry grpc.UnaryClientInterceptor) (context.Context, error) {
	if info, ok := connect.CallInfoForServerContext(ctx); ok { // in a handler without an interceptor of this module
		ctx = core.WithHeld(ctx, info.RequestHeader().Values(core.HeldHeader)...)
	}
	var held string
	var fences string
	var asked bool
	err := retry(ctx, "", nil, nil, nil, func(ctx context.Context, _ string, _, _ any, _ *grpc.ClientConn, _ ...grpc.CallOption) error {
		md, _ := metadata.FromOutgoingContext(ctx)
		held = strings.Join(md.Get(core.HeldHeader), "")
		fences, asked = grpcx.Fences(ctx)
		return nil // nothing is sent
	})
	if err != nil {
		return ctx, outward(err)
	}
	ctx = setOrDelete(ctx, core.HeldHeader, held)
	if asked {
		ctx = setOrDelete(ctx, core.FencesHeader, fences)
	}
	return ctx, nil
}

// setOrDelete sets a header of a call. Without a value it deletes the header, which can be that
// of an earlier call with the context.
func setOrDelete(ctx context.Context, name, value string) context.Context {
	info, ok := connect.CallInfoForClientContext(ctx)
	switch {
	case ok && value == "":
		info.RequestHeader().Delete(name)
	case value != "":
		if !ok { // called without a client
			ctx, info = connect.NewClientContext(ctx)
		}
		info.RequestHeader().Set(name, value)
	}
	return ctx
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
	info, ok := connect.CallInfoForClientContext(t.ctx)
	if !ok { // called without a client
		info = &connect.CallInfo{}
	}
	ctx := metadata.NewOutgoingContext(t.ctx, toMD(info.RequestHeader()))
	return outward(t.retry(ctx, t.spec.Procedure, t.req, nil, nil,
		func(_ context.Context, _ string, _, _ any, _ *grpc.ClientConn, opts ...grpc.CallOption) error {
			if !first {
				if err := t.again(); err != nil {
					return told(err)
				}
			}
			first = false
			err := told(t.latest().Receive(reply))
			for _, o := range opts {
				switch o := o.(type) {
				case grpc.HeaderCallOption:
					*o.HeaderAddr = toMD(info.ResponseHeader())
				case grpc.TrailerCallOption:
					*o.TrailerAddr = toMD(info.ResponseTrailer())
				}
			}
			return err
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
	_ = t.try.Close() // its error ended the try
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

// UnaryClientIdempotencyKey returns an interceptor for clients that gives unary calls the
// header Idempotency-Key, unless the caller has set it. What [grpclock.UnaryClientIdempotencyKey]
// says of methods, keys and errors holds here too: the key is the key of the context
// (idempotency.WithKey), or is derived from the call of the handler around, or is a new UUID.
// If the call may have been carried out, the error is an idempotency.RequestError with the
// key, and connect.CodeOf finds the code in it.
//
// A key of the interceptor is for one call, also if the context of NewClientContext is used for
// further calls. Streams and methods that declare NO_SIDE_EFFECTS get no key, so their GET
// requests can be cached. The interceptor is safe for concurrent use. Put it in front of
// [UnaryClientRetry]:
//
//	client := connect.NewClient(transport, connectlock.UnaryClientIdempotencyKey(), connectlock.UnaryClientRetry())
func UnaryClientIdempotencyKey(methods ...string) connect.ClientInterceptor {
	return func(next connect.ClientFunc) connect.ClientFunc {
		return func(ctx context.Context, spec connect.Spec) (connect.ClientStream, error) {
			if spec.StreamType != connect.StreamTypeUnary || spec.IdempotencyLevel == connect.IdempotencyNoSideEffects || !grpcx.TakesKey(methods, spec.Procedure) {
				return next(ctx, spec)
			}
			info, ok := connect.CallInfoForClientContext(ctx)
			if !ok { // called without a client
				ctx, info = connect.NewClientContext(ctx)
			}
			k := &keyed{spec: spec, info: info, done: func() {}}
			if !info.RequestHeader().Has(grpclock.IdempotencyKey) {
				var key string
				var err error
				if ctx, key, k.done, err = grpcx.WithKey(ctx, spec.Procedure); err != nil {
					return nil, err
				}
				info.RequestHeader().Set(grpclock.IdempotencyKey, key)
				k.made = true
			}
			k.ctx = ctx
			stream, err := next(ctx, spec)
			if err != nil {
				k.end()
				return nil, err
			}
			k.ClientStream = stream
			return k, nil
		}
	}
}

// keyed is a unary call with a key. If the interceptor has set the key, it leaves the header when
// the call ends.
type keyed struct {
	connect.ClientStream
	ctx  context.Context
	spec connect.Spec
	info *connect.CallInfo
	req  any
	made bool
	done func()

	mu    sync.Mutex // held while Receive may send the header
	ended bool
}

// end ends the call. The caller has k.mu, or is alone.
func (k *keyed) end() {
	if k.ended {
		return
	}
	k.ended = true
	k.done()
	if k.made {
		k.info.RequestHeader().Delete(grpclock.IdempotencyKey)
	}
}

// result turns an error of the call into the caller's error.
func (k *keyed) result(err error) error {
	if err == nil {
		return nil
	}
	c := grpcx.NewCalling(k.ctx, k.spec.Procedure, k.req, toMD(k.info.RequestHeader()))
	a, _ := c.After(told(err), metadata.Join(toMD(k.info.ResponseHeader()), toMD(k.info.ResponseTrailer())), true)
	return c.Result(c.Known.After(a), err, grpcx.LostPause)
}

// Send sends the message.
func (k *keyed) Send(req any) error {
	k.req = req
	return k.result(k.ClientStream.Send(req))
}

// CloseSend implements connect.ClientStream.
func (k *keyed) CloseSend() error { return k.result(k.ClientStream.CloseSend()) }

// Receive receives the reply. The call ends with it.
func (k *keyed) Receive(reply any) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.ended {
		return k.ClientStream.Receive(reply)
	}
	defer k.end()
	return k.result(k.ClientStream.Receive(reply))
}

// Close ends a call without its reply. While Receive runs, the call is Receive's to end.
func (k *keyed) Close() error {
	if k.mu.TryLock() {
		defer k.mu.Unlock()
		k.end()
	}
	return k.ClientStream.Close()
}
