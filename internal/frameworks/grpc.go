package frameworks

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"testing"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/interlock-go/interlock/core/adapter/adaptertest"
	"github.com/interlock-go/interlock/core/idempotency"
	"github.com/interlock-go/interlock/internal/frameworks/callspb"
)

// serveGRPC starts a server with interceptors, the first of which calls Service.Front, and
// returns a client for its unary method, or for the stream.
func serveGRPC(t testing.TB, s *adaptertest.Service, stream bool, unaries []grpc.UnaryServerInterceptor, streams []grpc.StreamServerInterceptor) adaptertest.Client {
	t.Helper()
	s.Start()
	srv := grpc.NewServer(
		grpc.ChainUnaryInterceptor(recoverUnary), grpc.ChainUnaryInterceptor(unaries...),
		grpc.ChainStreamInterceptor(recoverStream), grpc.ChainStreamInterceptor(streams...))
	callspb.RegisterCallsServer(srv, calls{service: s})
	l := bufconn.Listen(1 << 16) // nothing but memory between the two
	done := make(chan error, 1)
	go func() { done <- srv.Serve(l) }()
	conn, err := grpc.NewClient("passthrough:///adaptertest",
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return l.DialContext(ctx) }))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = conn.Close()
		srv.Stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return &grpcClient{s, callspb.NewCallsClient(conn), stream}
}

// A panic would end the process: grpc-go recovers none. Real servers have such
// an interceptor first, too.
func recoverUnary(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (_ any, err error) {
	defer recovered(&err)
	return handler(ctx, req)
}

func recoverStream(srv any, ss grpc.ServerStream, _ *grpc.StreamServerInfo, handler grpc.StreamHandler) (err error) {
	defer recovered(&err)
	return handler(srv, ss)
}

// recovered makes a status of a panic.
func recovered(err *error) {
	if thrown := recover(); thrown != nil {
		*err = status.Error(codes.Internal, fmt.Sprint(thrown))
	}
}

// calls is the service.
type calls struct {
	callspb.UnimplementedCallsServer
	service *adaptertest.Service
}

// Call implements callspb.CallsServer: it sends one reply.
func (c calls) Call(ctx context.Context, req *callspb.Request) (*callspb.Reply, error) {
	var text strings.Builder
	err := handleGRPC(ctx, c.service, req, func(s string) error { text.WriteString(s); return nil })
	return &callspb.Reply{Text: text.String()}, err
}

// Watch implements callspb.CallsServer.
func (c calls) Watch(req *callspb.Request, stream grpc.ServerStreamingServer[callspb.Reply]) error {
	return handleGRPC(stream.Context(), c.service, req, func(s string) error { return stream.Send(&callspb.Reply{Text: s}) })
}

// handleGRPC runs the handler.
func handleGRPC(ctx context.Context, s *adaptertest.Service, req *callspb.Request, send func(text string) error) error {
	err := s.Handle(ctx, &adaptertest.Call{
		Param: func(name string) string {
			return map[string]string{"id": req.GetId(), "from": req.GetFrom(), "to": req.GetTo()}[name]
		},
		Amount: func() (int64, error) { return req.GetAmount(), nil },
		Send:   send,
		Answer: func(result adaptertest.Result, text string) error {
			switch result {
			case adaptertest.Declined:
				return status.Error(codes.FailedPrecondition, text)
			case adaptertest.Busy:
				return status.Error(codes.ResourceExhausted, text)
			case adaptertest.Failed:
				return status.Error(codes.Internal, text)
			}
			return send(text)
		},
	})
	if errors.Is(err, adaptertest.ErrHandler) {
		return status.Error(codes.FailedPrecondition, "refused by the handler")
	}
	return err
}

type grpcClient struct {
	service *adaptertest.Service
	calls   callspb.CallsClient
	stream  bool
}

func (c *grpcClient) prepare(ctx context.Context, req adaptertest.Request) (context.Context, *callspb.Request) {
	for _, h := range req.Header {
		ctx = metadata.AppendToOutgoingContext(ctx, h[0], h[1]) //nolint:fatcontext // of a handful of pairs
	}
	msg := &callspb.Request{Id: req.Values["id"], From: req.Values["from"], To: req.Values["to"], Amount: req.Amount}
	if req.Padding > 0 {
		b := protowire.AppendTag(nil, 100, protowire.BytesType)
		msg.ProtoReflect().SetUnknown(protowire.AppendString(b, strings.Repeat(" ", req.Padding)))
	}
	return ctx, msg
}

// Call implements adaptertest.Client.
func (c *grpcClient) Call(ctx context.Context, req adaptertest.Request) (o adaptertest.Outcome) {
	before := c.service.Runs()
	defer func() { o.Ran = c.service.Runs() > before }()
	text, header, trailer, err := c.call(ctx, req)
	st, _ := status.FromError(err)
	o = adaptertest.Outcome{OK: err == nil, Text: text, Code: st.Code().String(), Detail: st.Message()}
	o.Replayed = header.Get(idempotency.ReplayedHeader) != nil
	o.Pushback = strings.Join(trailer.Get("grpc-retry-pushback-ms"), ",")
	for _, d := range st.Details() {
		switch d := d.(type) {
		case *errdetails.ErrorInfo:
			o.Reason, o.Domain = d.GetReason(), d.GetDomain()
		case *errdetails.RetryInfo:
			o.Retry = d.GetRetryDelay().AsDuration().String()
		}
	}
	if err != nil && o.Reason == "" {
		o.Text = st.Message()
	}
	return o
}

func (c *grpcClient) call(ctx context.Context, req adaptertest.Request) (text string, header, trailer metadata.MD, err error) {
	if !c.stream {
		ctx, r := c.prepare(ctx, req)
		reply, err := c.calls.Call(ctx, r, grpc.Header(&header), grpc.Trailer(&trailer))
		return reply.GetText(), header, trailer, err
	}
	s, err := c.open(ctx, req)
	if err != nil {
		return "", nil, nil, err
	}
	for {
		switch reply, err := s.Recv(); {
		case errors.Is(err, io.EOF):
			return text, nil, s.Trailer(), nil
		case err != nil:
			return text, nil, s.Trailer(), err
		default:
			text += reply.GetText()
		}
	}
}

func (c *grpcClient) open(ctx context.Context, req adaptertest.Request) (grpc.ServerStreamingClient[callspb.Reply], error) {
	ctx, r := c.prepare(ctx, req)
	return c.calls.Watch(ctx, r)
}

func (c *grpcClient) Open(ctx context.Context, req adaptertest.Request) (adaptertest.Stream, error) {
	if !c.stream {
		return nil, errors.New("a unary call has one reply")
	}
	ctx, cancel := context.WithCancel(ctx)
	s, err := c.open(ctx, req)
	if err != nil {
		cancel()
		return nil, err
	}
	return &grpcStream{s, cancel}, nil
}

type grpcStream struct {
	stream grpc.ServerStreamingClient[callspb.Reply]
	cancel context.CancelFunc
}

func (s *grpcStream) Next() (string, error) {
	reply, err := s.stream.Recv()
	return strings.TrimSuffix(reply.GetText(), "\n"), err
}

func (s *grpcStream) Close() { s.cancel() }
