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
	"github.com/interlock-go/interlock/core/idempotency"
	"github.com/interlock-go/interlock/grpclock"
	"github.com/interlock-go/interlock/grpclock/internal/testpb"
	"github.com/interlock-go/interlock/internal/idemtest"
)

const debit = "/interlock.test.v1.Bank/Debit"

func serveIdempotent(tb testing.TB, e *idemtest.Endpoint) idemtest.Client {
	again, rules := grpclock.Methods{}, grpclock.Rules{}
	if e.Again != nil {
		again[debit] = e.Again
	}
	if e.Lock != nil {
		rules[debit] = e.Lock
	}
	srv := start(tb, bank{}, grpc.ChainUnaryInterceptor(
		func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (reply any, err error) {
			if thrown := e.Front(ctx, func() { reply, err = handler(e.InFront(ctx), req) }); thrown != nil {
				return nil, status.Error(codes.Internal, fmt.Sprint(thrown))
			}
			return reply, err
		},
		grpclock.Idempotent(grpclock.Methods{debit: e.Engine}),
		grpclock.Idempotent(again),
		grpclock.UnaryServerInterceptor(rules),
		// The service is what is behind the interceptors.
		func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, _ grpc.UnaryHandler) (any, error) {
			r := req.(*testpb.Request)
			outcome, text := e.Handle(ctx, r.GetId(), r.GetAmount())
			switch outcome {
			case idemtest.OK:
				return &testpb.Reply{Text: text}, nil
			case idemtest.Nothing:
				return nil, ctx.Err()
			}
			return nil, status.Error(outcomes[outcome], text)
		}))
	return &rpcClient{tb, testpb.NewBankClient(dial(tb, srv, grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(4<<20))))}
}

func TestIdempotent(t *testing.T) { idemtest.Run(t, idempotency.GRPC, serveIdempotent) }

var outcomes = map[idemtest.Outcome]codes.Code{
	idemtest.Declined: codes.FailedPrecondition, idemtest.Busy: codes.ResourceExhausted, idemtest.Failed: codes.Internal,
}

// refusals is what DESIGN says, independently of the code.
var refusals = map[core.Reason]refusal{
	core.ReasonBadKey:              {codes.InvalidArgument, "bad-key", false, ""},
	core.ReasonKeyMissing:          {codes.InvalidArgument, "idempotency-key-missing", false, ""},
	core.ReasonKeyMalformed:        {codes.InvalidArgument, "idempotency-key-malformed", false, ""},
	core.ReasonNoPrincipal:         {codes.InvalidArgument, "idempotency-no-principal", false, ""},
	core.ReasonKeyReused:           {codes.FailedPrecondition, "idempotency-key-reused", false, ""},
	core.ReasonInFlight:            {codes.Aborted, "idempotency-in-flight", true, "100"},
	core.ReasonOutcomeUnknown:      {codes.DataLoss, "idempotency-outcome-unknown", false, ""},
	core.ReasonResponseUnavailable: {codes.DataLoss, "idempotency-response-unavailable", false, ""},
	core.ReasonKeyExpired:          {codes.FailedPrecondition, "idempotency-key-expired", false, ""},
	core.ReasonNoRecord:            {codes.Unavailable, "idempotency-unavailable", false, ""},
	core.ReasonClosing:             {codes.Unavailable, "closing", true, "100"},
	core.ReasonBodyTooLarge:        {codes.ResourceExhausted, "body-too-large", false, ""},
	core.ReasonHeld:                held,
	core.ReasonLost:                lost,
}

// rpcClient is a client of Bank.Debit.
type rpcClient struct {
	tb   testing.TB
	bank testpb.BankClient
}

func (c *rpcClient) Call(ctx context.Context, r idemtest.Request) (idemtest.Answer, error) {
	msg := &testpb.Request{Id: "42", Amount: r.Amount}
	if r.Account != "" {
		msg.Id = r.Account
	}
	if r.Padding > 0 { // a field that the service does not know
		b := protowire.AppendTag(nil, 100, protowire.BytesType)
		msg.ProtoReflect().SetUnknown(protowire.AppendString(b, strings.Repeat(" ", r.Padding)))
	}
	principal := r.Principal
	if principal == "" {
		principal = "alice"
	}
	md := metadata.Pairs("authorization", principal)
	md["idempotency-key"] = r.Keys
	var header, trailer metadata.MD
	reply, err := c.bank.Debit(metadata.NewOutgoingContext(ctx, md), msg, grpc.Header(&header), grpc.Trailer(&trailer))
	if ctx.Err() != nil {
		return idemtest.Answer{}, err
	}
	replayed := len(header.Get("idempotent-replayed")) == 1
	if err == nil {
		return idemtest.Answer{Text: reply.GetText(), Replayed: replayed}, nil
	}
	st := status.Convert(err)
	for _, d := range st.Details() {
		if info, ok := d.(*errdetails.ErrorInfo); ok && info.GetDomain() == grpclock.Domain {
			reason := core.Reason(info.GetReason())
			refusals[reason].of(c.tb, err, trailer)
			return idemtest.Answer{Refusal: reason}, nil
		}
	}
	a := idemtest.Answer{Outcome: -1, Text: st.Message(), Replayed: replayed}
	for outcome, code := range outcomes {
		if code == st.Code() {
			a.Outcome = outcome
		}
	}
	return a, nil
}

// pay is a service that no generated code knows, whose message has a request_id.
// It answers with how often it ran.
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
	call := pay(t, grpclock.Idempotent(grpclock.Methods{"/bank.v1.Bank/Pay": idemtest.Engine(t)}), "Pay")
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
	call := pay(t, grpclock.Idempotent(grpclock.Methods{"/bank.v1.Bank/Pay": idemtest.Engine(t)}), "Get")
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
	}}, grpc.UnaryInterceptor(grpclock.Idempotent(grpclock.Methods{debit: idemtest.Engine(t)})))))
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

func TestIdempotentStatuses(t *testing.T) {
	engine := idemtest.Engine(t)
	released := map[codes.Code]bool{
		codes.Canceled: true, codes.Unknown: true, codes.DeadlineExceeded: true, codes.ResourceExhausted: true,
		codes.Aborted: true, codes.Internal: true, codes.Unavailable: true, codes.Unauthenticated: true,
	}
	for code := codes.OK; code <= codes.Unauthenticated; code++ {
		runs := 0
		client := testpb.NewBankClient(dial(t, start(t, bank{call: func(context.Context, string) (string, error) {
			runs++
			return "", status.Error(code, "text")
		}}, grpc.UnaryInterceptor(grpclock.Idempotent(grpclock.Methods{debit: engine})))))
		ctx := metadata.AppendToOutgoingContext(t.Context(), "idempotency-key", code.String())
		for range 2 {
			if _, err := client.Debit(ctx, &testpb.Request{}); status.Code(err) != code {
				t.Errorf("%v; want %v", err, code)
			}
		}
		if want := map[bool]int{true: 2, false: 1}[released[code]]; runs != want {
			t.Errorf("%v: %d runs, want %d", code, runs, want)
		}
	}
}

func TestStreamsAreRefusedByName(t *testing.T) {
	engine := idemtest.Engine(t)
	for _, name := range []string{"Upload", "Export", "Chat"} {
		func() {
			defer func() {
				if err, ok := recover().(error); !ok || !errors.Is(err, core.ErrConfig) || !strings.Contains(err.Error(), "Bank/"+name) {
					t.Errorf("%s: %v", name, err)
				}
			}()
			grpclock.Idempotent(grpclock.Methods{"/interlock.test.v1.Bank/" + name: engine})
		}()
	}
	srv := grpc.NewServer()
	testpb.RegisterBankServer(srv, bank{})
	if err := (grpclock.Methods{debit: engine}).Validate(srv); err != nil {
		t.Error(err)
	}
	err := grpclock.Methods{
		debit: engine, "/interlock.test.v1.Bank/Chat": engine, "/interlock.test.v1.Bank/Pray": engine,
	}.Validate(srv)
	if !errors.Is(err, core.ErrConfig) || !strings.Contains(err.Error(), "Bank/Chat") || !strings.Contains(err.Error(), "Bank/Pray") ||
		strings.Contains(err.Error(), "Debit") {
		t.Error(err)
	}
}

func TestIdempotentWithoutAnEnginePanics(t *testing.T) {
	defer func() {
		if recover() == nil {
			t.Error("it did not")
		}
	}()
	grpclock.Idempotent(grpclock.Methods{debit: nil})
}

// The protobuf of a status takes no other text; gRPC sends any.
func TestStatusWithATextThatIsNotUTF8IsReplayed(t *testing.T) {
	runs := 0
	client := testpb.NewBankClient(dial(t, start(t, bank{call: func(context.Context, string) (string, error) {
		runs++
		return "", status.Error(codes.NotFound, "caf\xe9 \xff\xfe closed")
	}}, grpc.UnaryInterceptor(grpclock.Idempotent(grpclock.Methods{debit: idemtest.Engine(t)})))))
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

// During a deployment a field is known to one server and not to another, which
// keeps it as it came, behind all others.
func TestCallIsTheSameForServersThatKnowDifferentFields(t *testing.T) {
	engine := idemtest.Engine(t)
	runs := 0
	serve := func(change grpc.UnaryServerInterceptor) testpb.BankClient {
		return testpb.NewBankClient(dial(t, start(t, bank{call: func(context.Context, string) (string, error) {
			runs++
			return "done", nil
		}}, grpc.ChainUnaryInterceptor(change, grpclock.Idempotent(grpclock.Methods{debit: engine})))))
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
