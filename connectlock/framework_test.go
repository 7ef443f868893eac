package connectlock_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"connectrpc.com/connect/v2"
	"connectrpc.com/connect/v2/connecthttp"
	"connectrpc.com/connect/v2/connectproto"
	"go.uber.org/goleak"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"

	"github.com/interlock-go/interlock/connectlock"
	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/adapter/adaptertest"
	"github.com/interlock-go/interlock/core/idempotency"
	"github.com/interlock-go/interlock/core/idempotency/endpoint/endpointtest"
	"github.com/interlock-go/interlock/core/memstore"
	"github.com/interlock-go/interlock/grpclock"
	"github.com/interlock-go/interlock/internal/frameworks"
	"github.com/interlock-go/interlock/internal/frameworks/callspb"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// wires are connect in each of its protocols, unary and as a stream.
var wires = []adaptertest.Framework{
	{Label: "connect", Start: wire{}.start, Idempotent: true},
	{Label: "connect, JSON", Start: wire{http2: true, options: []connecthttp.Option{connecthttp.WithProtoJSON()}}.start, Idempotent: true},
	{Label: "connect, gRPC", Start: wire{http2: true, options: []connecthttp.Option{connecthttp.WithGRPC()}}.start, Idempotent: true},
	{Label: "connect, gRPC-Web", Start: wire{options: []connecthttp.Option{connecthttp.WithGRPCWeb()}}.start, Idempotent: true},
	{Label: "connect stream", Start: wire{stream: true}.start, Parts: true},
	{Label: "connect stream, gRPC", Start: wire{stream: true, http2: true, options: []connecthttp.Option{connecthttp.WithGRPC()}}.start, Parts: true},
	{Label: "connect stream, gRPC-Web", Start: wire{stream: true, options: []connecthttp.Option{connecthttp.WithGRPCWeb()}}.start, Parts: true},
}

func TestConnectBehavesAsTheOtherFrameworks(t *testing.T) { adaptertest.Run(t, wires...) }

func TestIdempotentMethodsBehaveAsInTheOtherFrameworks(t *testing.T) {
	endpointtest.Run(t, wires...)
}

func TestOneRuleExcludesAcrossConnectAndTheOthers(t *testing.T) {
	store := memstore.New()
	all := append([]adaptertest.Framework{}, frameworks.Protocols...)
	adaptertest.RunAcross(t, func(testing.TB) core.Store { return store }, append(all, wires...)...)
}

// wire is how clients of a service call it.
type wire struct {
	stream  bool
	http2   bool
	options []connecthttp.Option
}

// spec is the spec that connect's generated code would have.
func spec(t testing.TB, procedure string, kind connect.StreamType) connect.Spec {
	t.Helper()
	method := callspb.File_calls_proto.Services().ByName("Calls").Methods()
	for i := range method.Len() {
		if strings.HasSuffix(procedure, "/"+string(method.Get(i).Name())) {
			return connect.Spec{Procedure: procedure, StreamType: kind, Schema: method.Get(i)}
		}
	}
	t.Fatalf("%s is not in the proto", procedure)
	return connect.Spec{}
}

func (w wire) start(t testing.TB, s *adaptertest.Service) adaptertest.Client {
	unary := spec(t, callspb.Calls_Call_FullMethodName, connect.StreamTypeUnary)
	watch := spec(t, callspb.Calls_Watch_FullMethodName, connect.StreamTypeServer)
	called := unary
	if w.stream {
		called = watch
	}
	chain := []connect.ServerInterceptor{recovered, func(next connect.ServerFunc) connect.ServerFunc {
		return func(ctx context.Context, spec connect.Spec, stream connect.ServerStream) (err error) {
			s.Front(ctx, func(ctx context.Context) *http.Request {
				err = next(ctx, spec, stream)
				return nil
			})
			return err
		}
	}}
	for _, layer := range s.Layers {
		if layer.Idempotent != nil {
			chain = append(chain, connectlock.Protect(nil, grpclock.Methods{called.Procedure: layer.Idempotent}).Interceptor())
		} else {
			chain = append(chain, connectlock.Protect(grpclock.Rules{called.Procedure: layer.Lock}, nil).Interceptor())
		}
	}
	server := connect.NewServer(chain...)
	server.Register(
		connect.Method{Spec: unary, Handler: func(ctx context.Context, _ connect.Spec, stream connect.ServerStream) error {
			var text strings.Builder
			if err := handle(ctx, s, stream, func(s string) error { text.WriteString(s); return nil }); err != nil {
				return err
			}
			return stream.Send(&callspb.Reply{Text: text.String()})
		}},
		connect.Method{Spec: watch, Handler: func(ctx context.Context, _ connect.Spec, stream connect.ServerStream) error {
			return handle(ctx, s, stream, func(s string) error { return stream.Send(&callspb.Reply{Text: s}) })
		}},
	)
	mux := http.NewServeMux()
	connecthttp.Mount(mux, server)
	s.HTTP2 = w.http2
	srv := s.ServeHTTP(t, mux).Server
	transport := connecthttp.NewTransport(srv.Client(), srv.URL, w.options...)
	return &client{s, connect.NewClient(transport), called, w.stream}
}

// recovered makes an error of a panic. Real servers have such an interceptor first, too.
func recovered(next connect.ServerFunc) connect.ServerFunc {
	return func(ctx context.Context, spec connect.Spec, stream connect.ServerStream) (err error) {
		defer func() {
			if thrown := recover(); thrown != nil {
				err = connect.NewError(connect.CodeInternal, fmt.Sprint(thrown))
			}
		}()
		return next(ctx, spec, stream)
	}
}

// handle runs the handler of a service, as generated code would.
func handle(ctx context.Context, s *adaptertest.Service, stream connect.ServerStream, send func(string) error) error {
	req := &callspb.Request{}
	if err := stream.Receive(req); err != nil {
		return err
	}
	err := s.Handle(ctx, &adaptertest.Call{
		Param: func(name string) string {
			return map[string]string{"id": req.GetId(), "from": req.GetFrom(), "to": req.GetTo()}[name]
		},
		Amount: func() (int64, error) { return req.GetAmount(), nil },
		Send:   send,
		Answer: func(result adaptertest.Result, text string) error {
			switch result {
			case adaptertest.Declined:
				return connect.NewError(connect.CodeFailedPrecondition, text)
			case adaptertest.Busy:
				return connect.NewError(connect.CodeResourceExhausted, text)
			case adaptertest.Failed:
				return connect.NewError(connect.CodeInternal, text)
			}
			return send(text)
		},
	})
	if errors.Is(err, adaptertest.ErrHandler) {
		return connect.NewError(connect.CodeFailedPrecondition, "refused by the handler")
	}
	return err
}

// client is an adaptertest.Client of connect's.
type client struct {
	service *adaptertest.Service
	client  *connect.Client
	spec    connect.Spec
	stream  bool
}

func (c *client) prepare(ctx context.Context, req adaptertest.Request) (context.Context, *connect.CallInfo, *callspb.Request) {
	ctx, info := connect.NewClientContext(ctx)
	for _, h := range req.Header {
		info.RequestHeader().Add(h[0], h[1])
	}
	msg := &callspb.Request{Id: req.Values["id"], From: req.Values["from"], To: req.Values["to"], Amount: req.Amount}
	if req.Padding > 0 { // JSON has no fields that are not known
		msg.From = strings.Repeat(" ", req.Padding)
	}
	return ctx, info, msg
}

// Call implements adaptertest.Client.
func (c *client) Call(ctx context.Context, req adaptertest.Request) adaptertest.Outcome {
	before := c.service.Runs()
	ctx, info, msg := c.prepare(ctx, req)
	text, err := c.call(ctx, msg)
	o := outcome(err)
	if o.OK || o.Reason != "" {
		o.Text = text
	}
	o.Replayed = info.ResponseHeader().Has(idempotency.ReplayedHeader)
	o.Pushback = strings.Join(info.ResponseTrailer().Values("grpc-retry-pushback-ms"), ",")
	o.Ran = c.service.Runs() > before
	return o
}

func (c *client) call(ctx context.Context, msg *callspb.Request) (text string, err error) {
	if !c.stream {
		reply := &callspb.Reply{}
		err := c.client.CallUnary(ctx, c.spec, msg, reply)
		return reply.GetText(), err
	}
	s, err := c.client.CallServerStream(ctx, c.spec, msg)
	for err == nil {
		reply := &callspb.Reply{}
		err = s.Receive(reply)
		text += reply.GetText()
	}
	if errors.Is(err, io.EOF) {
		err = nil
	}
	return text, err
}

// outcome reads an error of connect's.
func outcome(err error) (o adaptertest.Outcome) {
	if err == nil {
		return adaptertest.Outcome{OK: true, Code: codes.OK.String()}
	}
	o.Code = codes.Code(connect.CodeOf(err)).String()
	var e *connect.Error
	if !errors.As(err, &e) {
		return o
	}
	o.Text, o.Detail = e.Message(), e.Message()
	for _, packed := range e.Details() {
		switch d, _ := connectproto.UnmarshalErrorDetail(packed); d := d.(type) {
		case *errdetails.ErrorInfo:
			o.Reason, o.Domain = d.GetReason(), d.GetDomain()
		case *errdetails.RetryInfo:
			o.Retry = d.GetRetryDelay().AsDuration().String()
		}
	}
	return o
}

// Open implements adaptertest.Client.
func (c *client) Open(ctx context.Context, req adaptertest.Request) (adaptertest.Stream, error) {
	if !c.stream {
		return nil, errors.New("a unary call has one reply")
	}
	ctx, _, msg := c.prepare(ctx, req)
	s, err := c.client.CallServerStream(ctx, c.spec, msg)
	return parts{s}, err
}

type parts struct{ stream connect.ClientStream }

func (p parts) Next() (string, error) {
	reply := &callspb.Reply{}
	err := p.stream.Receive(reply)
	return strings.TrimSuffix(reply.GetText(), "\n"), err
}

func (p parts) Close() { _ = p.stream.Close() }
