package grpclock_test

import (
	"context"
	"errors"
	"net"
	"testing"

	"github.com/grpc-ecosystem/go-grpc-middleware/v2/interceptors"
	"github.com/grpc-ecosystem/go-grpc-middleware/v2/interceptors/selector"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/adapter"
	"github.com/interlock-go/interlock/core/memstore"
	"github.com/interlock-go/interlock/core/reason"
	"github.com/interlock-go/interlock/grpclock"
	"github.com/interlock-go/interlock/grpclock/internal/testpb"
	"github.com/interlock-go/interlock/internal/testkit"
)

func TestFieldOfAMessageInTheMessageIsPartOfTheKey(t *testing.T) {
	client := serve(t, bank{call: keyOf}, annotated(t, testkit.Locker(t)))
	reply, err := client.Transfer(t.Context(), &testpb.TransferRequest{From: "b", To: &testpb.Account{Id: "a"}})
	if err != nil || reply.GetText() != "[account/a account/b]" {
		t.Errorf("%v, %v", reply, err)
	}
	_, err = client.Transfer(t.Context(), &testpb.TransferRequest{From: "a"}) // no account to transfer to
	badKey.of(t, err, nil)
}

func TestUnknownReasonIsInternal(t *testing.T) {
	if code := status.Code(grpclock.Status(t.Context(), "/a/b", &core.Refusal{Reason: "new"})); code != codes.Internal {
		t.Errorf("an unknown reason is %v", code)
	}
}

func TestHandlerThatFailsAfterItsLeaseWasLostIsAbortedAndNotCanceled(t *testing.T) {
	store := memstore.New()
	losses := make(chan core.Loss, 10)
	locker := testkit.LockerOn(t, store, core.OnLost(func(l core.Loss) { losses <- l }))
	var end func(ctx context.Context) error
	client := serve(t, bank{call: func(ctx context.Context, _ string) (string, error) {
		testkit.Lose(ctx, t, store)
		return "done", end(ctx)
	}}, annotated(t, locker))

	for name, f := range map[string]func(context.Context) error{
		"its context's error":  func(ctx context.Context) error { return ctx.Err() },
		"its context's cause":  context.Cause,
		"a status made of it":  func(ctx context.Context) error { return status.FromContextError(ctx.Err()).Err() },
		"what a database says": func(context.Context) error { return errors.New("statement canceled") },
	} {
		end = f
		t.Log(name)
		lost.by(t.Context(), t, client.Debit, "1")
	}
	// A handler that succeeded all the same has checked the token, or had nothing more
	// to do.
	end = func(context.Context) error { return nil }
	if reply, err := client.Debit(t.Context(), &testpb.Request{Id: "1"}); err != nil || reply.GetText() != "done" {
		t.Errorf("%v, %v", reply, err)
	}
	for range 5 {
		if l := <-losses; l.Key != "account/1" || l.Rule != "account/{id}" {
			t.Errorf("OnLost: %+v", l)
		}
	}
}

func TestSelectorChoosesMethodsAndMethodsWithoutARulePassThrough(t *testing.T) {
	locker := testkit.Locker(t)
	rules := annotated(t, locker)
	but := selector.MatchFunc(func(_ context.Context, c interceptors.CallMeta) bool {
		return c.Method != "Try" && c.Method != "Export"
	})
	b := bank{
		call: keyOf,
		export: func(_ *testpb.Request, s testpb.Bank_ExportServer) error {
			text, err := keyOf(s.Context(), "")
			return errors.Join(err, s.Send(&testpb.Reply{Text: text}))
		},
	}
	client := testpb.NewBankClient(dial(t, start(t, b,
		grpc.ChainUnaryInterceptor(selector.UnaryServerInterceptor(grpclock.Protect(rules, nil).Unary(), but)),
		grpc.ChainStreamInterceptor(selector.StreamServerInterceptor(grpclock.Protect(rules, nil).Stream(), but)))))
	for name, c := range map[string]struct {
		call unary
		want string
	}{
		"with a rule":    {client.Debit, "[account/1]"},
		"not selected":   {client.Try, "no lease"},
		"without a rule": {client.Get, "no lease"},
	} {
		if reply, err := c.call(t.Context(), &testpb.Request{Id: "1"}); err != nil || reply.GetText() != c.want {
			t.Errorf("%s: %v, %v; want %s", name, reply, err, c.want)
		}
	}
	stream, err := client.Export(t.Context(), &testpb.Request{Id: "1"})
	if err != nil {
		t.Fatal(err)
	}
	if reply, err := stream.Recv(); err != nil || reply.GetText() != "no lease" {
		t.Errorf("%v, %v", reply, err)
	}
}

func TestRenderReplacesTheErrorAndCannotMakeASuccessOfIt(t *testing.T) {
	locker := testkit.Locker(t)
	rules := annotated(t, locker)
	own := serve(t, never(t), rules, grpclock.Render(func(ctx context.Context, fullMethod string, r *core.Refusal) error {
		if r.Reason != reason.BadKey || !errors.Is(r.Err, core.ErrKey) || r.Rule != "account/{id}" {
			t.Errorf("refusal %+v", r)
		}
		if md, _ := metadata.FromIncomingContext(ctx); md.Get("fallback") != nil {
			return grpclock.Status(ctx, fullMethod, r)
		}
		return status.Error(codes.PermissionDenied, fullMethod)
	}))
	_, err := own.Debit(t.Context(), &testpb.Request{})
	if st, _ := status.FromError(err); st.Code() != codes.PermissionDenied || st.Message() != testpb.Bank_Debit_FullMethodName {
		t.Error(err)
	}
	badKey.by(metadata.AppendToOutgoingContext(t.Context(), "fallback", "1"), t, own.Debit, "")

	none := serve(t, never(t), rules, grpclock.Render(nil), grpclock.FirstMessageWait(0))
	badKey.by(t.Context(), t, none.Debit, "")
	silent := serve(t, never(t), rules, grpclock.Render(func(context.Context, string, *core.Refusal) error { return nil }))
	badKey.by(t.Context(), t, silent.Debit, "")
	stream, err := silent.Chat(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	_, err = stream.Recv()
	badKey.of(t, err, nil)
}

func TestRulesAreCopied(t *testing.T) {
	rules := annotated(t, testkit.Locker(t))
	client := serve(t, bank{call: keyOf}, rules)
	delete(rules, testpb.Bank_Debit_FullMethodName)
	if reply, err := client.Debit(t.Context(), &testpb.Request{Id: "1"}); err != nil || reply.GetText() != "[account/1]" {
		t.Errorf("%v, %v", reply, err)
	}
}

// on runs a message through the interceptor, for a method that no proto has.
func on(t testing.TB, template string, msg any, opts ...core.GuardOption) (keys []string, err error) {
	t.Helper()
	intercept := grpclock.Protect(grpclock.Rules{"/a.B/C": core.Serialize(testkit.Locker(t), template, opts...)}, nil).Unary()
	_, err = intercept(t.Context(), msg, &grpc.UnaryServerInfo{FullMethod: "/a.B/C"}, func(ctx context.Context, _ any) (any, error) {
		keys = core.LeaseFromContext(ctx).Keys()
		return nil, nil
	})
	return keys, err
}

func TestFieldsOfEveryKindThatAKeyCanBeMadeOf(t *testing.T) {
	red := testpb.Kinds_COLOR_RED
	for _, c := range []struct {
		field string
		msg   *testpb.Kinds
		want  string // "": missing
	}{
		{"text", &testpb.Kinds{Text: "a/b {}\r\n%41ö"}, "a%2Fb%20%7B%7D%0D%0A%2541%C3%B6"},
		{"text", &testpb.Kinds{}, ""},
		{"maybe_text", &testpb.Kinds{MaybeText: new("x")}, "x"},
		{"maybe_text", &testpb.Kinds{MaybeText: new("")}, ""}, // present, and empty
		{"i32", &testpb.Kinds{I32: -7}, "-7"},
		{"i32", &testpb.Kinds{}, ""},
		{"maybe_i32", &testpb.Kinds{MaybeI32: new(int32(0))}, "0"}, // zero is a value where there is presence
		{"maybe_i32", &testpb.Kinds{}, ""},
		{"s64", &testpb.Kinds{S64: -1 << 63}, "-9223372036854775808"},
		{"u64", &testpb.Kinds{U64: 1<<64 - 1}, "18446744073709551615"},
		{"f32", &testpb.Kinds{F32: 1<<32 - 1}, "4294967295"},
		{"flag", &testpb.Kinds{Flag: true}, "true"},
		{"flag", &testpb.Kinds{}, ""},
		{"maybe_flag", &testpb.Kinds{MaybeFlag: new(false)}, "false"},
		{"color", &testpb.Kinds{Color: red}, "1"},
		{"color", &testpb.Kinds{Color: 77}, "77"}, // of a newer client
		{"color", &testpb.Kinds{}, ""},
		{"maybe_color", &testpb.Kinds{MaybeColor: new(testpb.Kinds_COLOR_UNSPECIFIED)}, "0"},
		{"first", &testpb.Kinds{One: &testpb.Kinds_First{First: "x"}}, "x"},
		{"second", &testpb.Kinds{One: &testpb.Kinds_Second{}}, "0"},
		{"second", &testpb.Kinds{One: &testpb.Kinds_First{First: "x"}}, ""},
		{"msg.header.text", &testpb.Kinds{Header: &testpb.Kinds{Text: "x"}}, "x"},
		{"msg.header.header.i32", &testpb.Kinds{Header: &testpb.Kinds{Header: &testpb.Kinds{I32: 1}}}, "1"},
		{"msg.header.header.i32", &testpb.Kinds{Header: &testpb.Kinds{}}, ""},
		{"msg.header.header.i32", &testpb.Kinds{}, ""},
		{"msg.header.maybe_i32", &testpb.Kinds{}, ""},
	} {
		keys, err := on(t, "k/{"+c.field+"}", c.msg)
		switch {
		case c.want == "" && status.Code(err) != codes.InvalidArgument:
			t.Errorf("{%s} of {%v}: %v, %v; want INVALID_ARGUMENT", c.field, c.msg, keys, err)
		case c.want != "" && (err != nil || keys[0] != "k/"+c.want):
			t.Errorf("{%s} of {%v}: %v, %v; want k/%s", c.field, c.msg, keys, err, c.want)
		}
	}
	for _, field := range []string{"number", "raw", "many", "table", "msg.header", "msg.header.many", "table.key", "text.x", "I32", "mayBe"} {
		if keys, err := on(t, "k/{"+field+"}", &testpb.Kinds{}); status.Code(err) != codes.Internal {
			t.Errorf("{%s}: %v, %v; want INTERNAL", field, keys, err)
		}
	}
	if _, err := on(t, "k/{text}", "not a message"); status.Code(err) != codes.Internal {
		t.Errorf("another codec's message: %v; want INTERNAL", err)
	}
	if _, err := on(t, "k/{query.q}", &testpb.Kinds{}); status.Code(err) != codes.InvalidArgument {
		t.Errorf("query: %v", err)
	}
}

func TestKeyFuncSeesMessageFieldsMetadataAndBody(t *testing.T) {
	msg := &testpb.Kinds{Text: "x", I32: 7}
	wire, err := proto.MarshalOptions{Deterministic: true}.Marshal(msg)
	if err != nil {
		t.Fatal(err)
	}
	keys, err := on(t, "", msg, core.KeyFunc(func(_ context.Context, req core.Request) ([]string, error) {
		if req.Native() != any(msg) {
			t.Error("not the native request")
		}
		if route, ok := req.Route(); route != "/a.B/C" || !ok {
			t.Errorf("route %q", route)
		}
		body, err := req.Body(int64(len(wire)))
		if string(body) != string(wire) || err != nil {
			t.Errorf("body %x, %v; want %x", body, err, wire)
		}
		if _, err := req.Body(int64(len(wire)) - 1); !errors.Is(err, adapter.ErrBodyLimit) {
			t.Errorf("a byte less: %v", err)
		}
		v, err := req.Param("i32")
		return []string{v}, err
	}))
	if err != nil || keys[0] != "7" {
		t.Errorf("%v, %v", keys, err)
	}
	if _, err := on(t, "", 42, core.KeyFunc(func(_ context.Context, req core.Request) ([]string, error) {
		_, err := req.Body(1)
		return nil, err
	})); status.Code(err) != codes.Internal {
		t.Errorf("another codec's body: %v; want INTERNAL", err)
	}
}

func TestHostIsTheAuthorityOverLoopback(t *testing.T) {
	srv := grpc.NewServer(grpc.UnaryInterceptor(grpclock.Protect(grpclock.Rules{
		testpb.Bank_Get_FullMethodName: core.Serialize(testkit.Locker(t), "host/{header.Host}/{header.X-Tenant}/{header.raw-bin}"),
	}, nil).Unary()))
	testpb.RegisterBankServer(srv, bank{call: keyOf})
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	run(t, srv, l)
	conn, err := grpc.NewClient(l.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithAuthority("bank.example"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	ctx := metadata.AppendToOutgoingContext(t.Context(), "X-Tenant", "acme", "raw-bin", "\x00\xff")
	reply, err := testpb.NewBankClient(conn).Get(ctx, &testpb.Request{})
	if err != nil || reply.GetText() != "[host/bank.example/acme/%00%FF]" {
		t.Errorf("%v, %v", reply, err)
	}
}
