package connectlock_test

import (
	"context"
	"crypto/x509"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"connectrpc.com/connect/v2"
	"connectrpc.com/connect/v2/connecthttp"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/descriptorpb"
	"google.golang.org/protobuf/types/dynamicpb"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/interlock-go/interlock/grpclock/lockpb"
)

// The procedures of a service that declares locks in its proto.
const (
	debit  = "/interlock.connecttest.v1.Bank/Debit"  // account/{id}
	get    = "/interlock.connecttest.v1.Bank/Get"    // account/{id}, shared, NO_SIDE_EFFECTS
	chat   = "/interlock.connecttest.v1.Bank/Chat"   // account/{id}, a stream both ways
	listen = "/interlock.connecttest.v1.Bank/Listen" // tenant/{header.X-Tenant}, a stream both ways
)

// bankFile is the proto, as a generator of code would link it in.
var bankFile = func() protoreflect.FileDescriptor {
	file := newFile()
	if err := protoregistry.GlobalFiles.RegisterFile(file); err != nil {
		panic(err)
	}
	for i := range file.Messages().Len() {
		if err := protoregistry.GlobalTypes.RegisterMessage(dynamicpb.NewMessageType(file.Messages().Get(i))); err != nil {
			panic(err)
		}
	}
	return file
}()

// newFile makes the proto, which is not linked in.
func newFile() protoreflect.FileDescriptor {
	declared := func(lock *lockpb.Serialize, level descriptorpb.MethodOptions_IdempotencyLevel) *descriptorpb.MethodOptions {
		o := &descriptorpb.MethodOptions{IdempotencyLevel: &level}
		proto.SetExtension(o, lockpb.E_Serialize, lock)
		return o
	}
	text := func(name string, number int32) *descriptorpb.FieldDescriptorProto {
		return &descriptorpb.FieldDescriptorProto{
			Name: &name, Number: &number,
			Type: descriptorpb.FieldDescriptorProto_TYPE_STRING.Enum(), Label: descriptorpb.FieldDescriptorProto_LABEL_OPTIONAL.Enum(),
		}
	}
	method := func(name string, streams bool, o *descriptorpb.MethodOptions) *descriptorpb.MethodDescriptorProto {
		return &descriptorpb.MethodDescriptorProto{
			Name: &name, Options: o, ClientStreaming: &streams, ServerStreaming: &streams,
			InputType: proto.String(".interlock.connecttest.v1.Request"), OutputType: proto.String(".interlock.connecttest.v1.Reply"),
		}
	}
	const unknown, none = descriptorpb.MethodOptions_IDEMPOTENCY_UNKNOWN, descriptorpb.MethodOptions_NO_SIDE_EFFECTS
	file, err := protodesc.NewFile(&descriptorpb.FileDescriptorProto{
		Name: proto.String("connecttest.proto"), Package: proto.String("interlock.connecttest.v1"), Syntax: proto.String("proto3"),
		MessageType: []*descriptorpb.DescriptorProto{
			{Name: proto.String("Request"), Field: []*descriptorpb.FieldDescriptorProto{text("id", 1), text("request_id", 2)}},
			{Name: proto.String("Reply"), Field: []*descriptorpb.FieldDescriptorProto{text("text", 1)}},
		},
		Service: []*descriptorpb.ServiceDescriptorProto{{Name: proto.String("Bank"), Method: []*descriptorpb.MethodDescriptorProto{
			method("Debit", false, declared(&lockpb.Serialize{Key: "account/{id}", NoWait: true}, unknown)),
			method("Get", false, declared(&lockpb.Serialize{Key: "account/{id}", NoWait: true, Mode: lockpb.Serialize_SHARED}, none)),
			method("Chat", true, declared(&lockpb.Serialize{Key: "account/{id}", NoWait: true}, unknown)),
			method("Listen", true, declared(&lockpb.Serialize{Key: "tenant/{header.X-Tenant}", NoWait: true}, unknown)),
		}}},
	}, new(protoregistry.Files))
	if err != nil {
		panic(err)
	}
	return file
}

// bankSpec is the spec of a procedure, as generated code has it.
func bankSpec(procedure string) connect.Spec {
	methods := bankFile.Services().ByName("Bank").Methods()
	for i := range methods.Len() {
		m := methods.Get(i)
		if "/interlock.connecttest.v1.Bank/"+string(m.Name()) != procedure {
			continue
		}
		spec := connect.Spec{Procedure: procedure, Schema: m}
		if m.IsStreamingClient() {
			spec.StreamType = connect.StreamTypeBidi
		}
		if m.Options().(*descriptorpb.MethodOptions).GetIdempotencyLevel() == descriptorpb.MethodOptions_NO_SIDE_EFFECTS {
			spec.IdempotencyLevel = connect.IdempotencyNoSideEffects
		}
		return spec
	}
	panic(procedure)
}

// message makes a message of the bank's, with fields as name and value.
func message(name string, fields ...string) *dynamicpb.Message {
	m := dynamicpb.NewMessage(bankFile.Messages().ByName(protoreflect.Name(name)))
	for i := 0; i < len(fields); i += 2 {
		m.Set(m.Descriptor().Fields().ByName(protoreflect.Name(fields[i])), protoreflect.ValueOfString(fields[i+1]))
	}
	return m
}

// field returns a field of a message.
func field(m *dynamicpb.Message, name string) string {
	return m.Get(m.Descriptor().Fields().ByName(protoreflect.Name(name))).String()
}

// registerBank registers the bank, as generated code would. One function handles all unary
// methods, another the streams.
func registerBank(server *connect.Server, call func(ctx context.Context, req *dynamicpb.Message) (text string, err error), stream connect.ServerFunc) {
	for _, procedure := range []string{debit, get} {
		server.Register(connect.Method{Spec: bankSpec(procedure), Handler: func(ctx context.Context, _ connect.Spec, s connect.ServerStream) error {
			req := message("Request")
			if err := s.Receive(req); err != nil {
				return err
			}
			text, err := call(ctx, req)
			if err != nil {
				return err
			}
			return s.Send(message("Reply", "text", text))
		}})
	}
	for _, procedure := range []string{chat, listen} {
		server.Register(connect.Method{Spec: bankSpec(procedure), Handler: stream})
	}
}

// newServer makes a server of the bank.
func newServer(
	call func(ctx context.Context, req *dynamicpb.Message) (text string, err error),
	stream connect.ServerFunc, interceptors ...connect.ServerInterceptor,
) *connect.Server {
	server := connect.NewServer(interceptors...)
	registerBank(server, call, stream)
	return server
}

// serve serves on HTTP/2.
func serve(t *testing.T, server *connect.Server) *httptest.Server {
	t.Helper()
	mux := http.NewServeMux()
	connecthttp.Mount(mux, server)
	srv := httptest.NewUnstartedServer(mux)
	srv.EnableHTTP2 = true
	srv.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, 0)
	srv.StartTLS()
	t.Cleanup(srv.Close)
	return srv
}

// protocols are the protocols of the clients.
var protocols = map[string][]connecthttp.Option{
	"connect":  nil,
	"gRPC":     {connecthttp.WithGRPC()},
	"gRPC-Web": {connecthttp.WithGRPCWeb()},
}

func dial(srv *httptest.Server, options ...connecthttp.Option) *connect.Client {
	return connect.NewClient(connecthttp.NewTransport(srv.Client(), srv.URL, options...))
}

// send makes a unary call.
func send(ctx context.Context, c *connect.Client, procedure string, fields ...string) (string, error) {
	reply := message("Reply")
	err := c.CallUnary(ctx, bankSpec(procedure), message("Request", fields...), reply)
	return field(reply, "text"), err
}

// pool trusts a server.
func pool(srv *httptest.Server) *x509.CertPool {
	p := x509.NewCertPool()
	p.AddCert(srv.Certificate())
	return p
}

// grpcRetryInfo is the hint of package grpclock.
var grpcRetryInfo = &errdetails.RetryInfo{RetryDelay: durationpb.New(time.Second)}
