package grpclock_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/grpclock"
	"github.com/interlock-go/interlock/grpclock/internal/testpb"
	"github.com/interlock-go/interlock/internal/testkit"
)

const debit = "/interlock.test.v1.Bank/Debit"

// pay is a service without generated code. Its message has a request_id. It answers with how
// often it ran.
func pay(t testing.TB, interceptor grpc.UnaryServerInterceptor, method string) (call func(requestID, body string, metadata ...string) (string, bool, error)) {
	t.Helper()
	runs := 0
	srv := grpc.NewServer(grpc.UnaryInterceptor(interceptor))
	service := "bank.v1.Bank"
	srv.RegisterService(&grpc.ServiceDesc{
		ServiceName: service, HandlerType: (*any)(nil),
		Methods: []grpc.MethodDesc{{
			MethodName: method,
			Handler: func(_ any, ctx context.Context, decode func(any) error, intercept grpc.UnaryServerInterceptor) (any, error) {
				req := new(errdetails.RequestInfo)
				if err := decode(req); err != nil {
					return nil, err
				}
				info := &grpc.UnaryServerInfo{FullMethod: "/" + service + "/" + method}
				return intercept(ctx, req, info, func(context.Context, any) (any, error) {
					runs++
					return wrapperspb.String(fmt.Sprint("run ", runs)), nil
				})
			},
		}},
	}, nil)
	l := bufconn.Listen(1 << 16)
	run(t, srv, l)
	conn := dial(t, l)
	return func(id, body string, pairs ...string) (string, bool, error) {
		t.Helper()
		var header metadata.MD
		reply := new(wrapperspb.StringValue)
		ctx := metadata.NewOutgoingContext(t.Context(), metadata.Pairs(pairs...))
		err := conn.Invoke(ctx, "/"+service+"/"+method, &errdetails.RequestInfo{RequestId: id, ServingData: body}, reply, grpc.Header(&header))
		return reply.GetValue(), len(header.Get("idempotent-replayed")) == 1, err
	}
}

func TestIdempotentTakesTheRequestIDForTheKey(t *testing.T) {
	call := pay(t, grpclock.Protect(nil, grpclock.Methods{"/bank.v1.Bank/Pay": testkit.Engine(t)}).Unary(), "Pay")
	for i, c := range []struct {
		id, body string
		metadata []string
		text     string
		replayed bool
		code     codes.Code
	}{
		{"a", "", nil, "run 1", false, codes.OK},
		{"a", "", nil, "run 1", true, codes.OK},                                  // without the type of its reply
		{"a", "", []string{"idempotency-key", "other"}, "run 1", true, codes.OK}, // the field goes before
		{"a", "x", nil, "", false, codes.FailedPrecondition},
		{"", "", []string{"idempotency-key", "b"}, "run 2", false, codes.OK},
		{"", "", []string{"idempotency-key", "b"}, "run 2", true, codes.OK},
		{"", "", nil, "", false, codes.InvalidArgument},
		{"not a key", "", nil, "", false, codes.InvalidArgument},
	} {
		text, replayed, err := call(c.id, c.body, c.metadata...)
		if text != c.text || replayed != c.replayed || status.Code(err) != c.code {
			t.Errorf("%d: %q, replayed %v, %v; want %q, %v, %v", i, text, replayed, err, c.text, c.replayed, c.code)
		}
	}
}

func TestOtherMethodsAreNotIdempotent(t *testing.T) {
	call := pay(t, grpclock.Protect(nil, grpclock.Methods{"/bank.v1.Bank/Pay": testkit.Engine(t)}).Unary(), "Get")
	for _, want := range []string{"run 1", "run 2"} {
		if text, replayed, err := call("a", ""); text != want || replayed || err != nil {
			t.Errorf("%q, replayed %v, %v", text, replayed, err)
		}
	}
}

// A status is replayed whole, and so is the metadata that the handler sent.
func TestIdempotentReplaysDetailsAndMetadata(t *testing.T) {
	runs := 0
	client := testpb.NewBankClient(dial(t, start(t, bank{call: func(ctx context.Context, _ string) (string, error) {
		runs++
		err := errors.Join(
			grpc.SetHeader(ctx, metadata.Pairs("x-bank", "a", "x-bank", "b")),
			grpc.SendHeader(ctx, metadata.Pairs("x-sent-bin", "\x00\xff", "x-request-id", fmt.Sprint(runs))),
			grpc.SetTrailer(ctx, metadata.Pairs("x-cost", "1")))
		if err != nil {
			t.Error(err)
		}
		st, err := status.New(codes.FailedPrecondition, "too poor").WithDetails(&errdetails.QuotaFailure{
			Violations: []*errdetails.QuotaFailure_Violation{{Subject: "account/42"}},
		})
		if err != nil {
			t.Error(err)
		}
		return "", st.Err()
	}}, grpc.UnaryInterceptor(grpclock.Protect(nil, grpclock.Methods{debit: testkit.Engine(t)}).Unary()))))
	var statuses [2]*status.Status
	for i := range statuses {
		var header, trailer metadata.MD
		ctx := metadata.AppendToOutgoingContext(t.Context(), "idempotency-key", "k")
		_, err := client.Debit(ctx, &testpb.Request{Id: "42"}, grpc.Header(&header), grpc.Trailer(&trailer))
		statuses[i] = status.Convert(err)
		if fmt.Sprint(header["x-bank"], header["x-sent-bin"], trailer["x-cost"]) != "[a b] [\x00\xff] [1]" {
			t.Errorf("%d: header %v, trailer %v", i, header, trailer)
		}
		if replayed := len(header["idempotent-replayed"]) == 1; replayed != (i == 1) || len(header["x-request-id"]) != 1-i {
			t.Errorf("%d: header %v", i, header)
		}
	}
	if !proto.Equal(statuses[0].Proto(), statuses[1].Proto()) || len(statuses[0].Details()) != 1 || runs != 1 {
		t.Errorf("%v, then %v; %d runs", statuses[0], statuses[1], runs)
	}
}

func TestStreamsAreRefusedByName(t *testing.T) {
	engine := testkit.Engine(t)
	for _, name := range []string{"Upload", "Export", "Chat"} {
		func() {
			defer func() {
				if err, ok := recover().(error); !ok || !errors.Is(err, core.ErrConfig) || !strings.Contains(err.Error(), "Bank/"+name) {
					t.Errorf("%s: %v", name, err)
				}
			}()
			grpclock.Protect(nil, grpclock.Methods{"/interlock.test.v1.Bank/" + name: engine}).Unary()
		}()
	}
	srv := grpc.NewServer()
	testpb.RegisterBankServer(srv, bank{})
	rules := annotated(t, testkit.Locker(t))
	if err := taken(grpclock.Protect(rules, grpclock.Methods{debit: engine})).Validate(srv); err != nil {
		t.Error(err)
	}
	err := taken(grpclock.Protect(rules, grpclock.Methods{debit: engine, "/interlock.test.v1.Bank/Pray": engine})).Validate(srv)
	if !errors.Is(err, core.ErrConfig) || !strings.Contains(err.Error(), "Bank/Pray") || strings.Contains(err.Error(), "Debit") {
		t.Error(err)
	}
	// The proto of a stream that is not linked into the program.
	late := services{"late.v1.Late": {Methods: []grpc.MethodInfo{{Name: "Watch", IsServerStream: true}}}}
	err = taken(grpclock.Protect(nil, grpclock.Methods{"/late.v1.Late/Watch": engine})).Validate(late)
	if !errors.Is(err, core.ErrConfig) || !strings.Contains(err.Error(), "it is a stream") {
		t.Errorf("%v; want ErrConfig, since it is a stream", err)
	}
}

// The protobuf of a status takes no other text; gRPC sends any.
func TestStatusWithATextThatIsNotUTF8IsReplayed(t *testing.T) {
	runs := 0
	client := testpb.NewBankClient(dial(t, start(t, bank{call: func(context.Context, string) (string, error) {
		runs++
		return "", status.Error(codes.NotFound, "caf\xe9 \xff\xfe closed")
	}}, grpc.UnaryInterceptor(grpclock.Protect(nil, grpclock.Methods{debit: testkit.Engine(t)}).Unary()))))
	ctx := metadata.AppendToOutgoingContext(t.Context(), "idempotency-key", "k")
	var answers []string
	for range 2 {
		_, err := client.Debit(ctx, &testpb.Request{Id: "1"})
		answers = append(answers, err.Error())
	}
	if want := "rpc error: code = NotFound desc = caf\ufffd \ufffd\ufffd closed"; runs != 1 || answers[0] != want || answers[1] != want {
		t.Errorf("%d runs, %q; want one and %q", runs, answers, want)
	}
}

// During a deployment a field is known to one server and not to another, which keeps it as it
// came, after all others.
func TestCallIsTheSameForServersThatKnowDifferentFields(t *testing.T) {
	engine := testkit.Engine(t)
	runs := 0
	serve := func(change grpc.UnaryServerInterceptor) testpb.BankClient {
		return testpb.NewBankClient(dial(t, start(t, bank{call: func(context.Context, string) (string, error) {
			runs++
			return "done", nil
		}}, grpc.ChainUnaryInterceptor(change, grpclock.Protect(nil, grpclock.Methods{debit: engine}).Unary()))))
	}
	// To the old one the first field of the request is the unknown one.
	old := serve(func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
		r := req.(*testpb.Request)
		b := protowire.AppendString(protowire.AppendTag(nil, 1, protowire.BytesType), r.GetId())
		r.Id = ""
		r.ProtoReflect().SetUnknown(b)
		return next(ctx, r)
	})
	current := serve(func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
		return next(ctx, req)
	})
	ctx := metadata.AppendToOutgoingContext(t.Context(), "idempotency-key", "k")
	r := &testpb.Request{Id: "1", Amount: 100}
	for name, client := range map[string]testpb.BankClient{"old": old, "current": current, "old again": old} {
		if reply, err := client.Debit(ctx, r); err != nil || reply.GetText() != "done" {
			t.Errorf("%s: %v, %v", name, reply, err)
		}
	}
	_, err := old.Debit(ctx, &testpb.Request{Id: "2", Amount: 100})
	if status.Code(err) != codes.FailedPrecondition || runs != 1 {
		t.Errorf("%v, %d runs; want another request refused, and one run", err, runs)
	}
}
