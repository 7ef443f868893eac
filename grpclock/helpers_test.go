package grpclock_test

import (
	"context"
	"fmt"
	"net"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/reason"
	"github.com/interlock-go/interlock/grpclock"
	"github.com/interlock-go/interlock/grpclock/internal/testpb"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// annotated returns the rules of the test service's proto.
func annotated(t testing.TB, locker *core.Locker, opts ...core.GuardOption) grpclock.Rules {
	t.Helper()
	rules, err := grpclock.FromProto(locker, grpclock.RuleOptions(opts...))
	if err != nil {
		t.Fatal(err)
	}
	return rules
}

// bank is the test service: every unary method is call, by its key fields.
type bank struct {
	testpb.UnimplementedBankServer
	call   func(ctx context.Context, id string) (string, error)
	upload func(testpb.Bank_UploadServer) error
	export func(*testpb.Request, testpb.Bank_ExportServer) error
	chat   func(testpb.Bank_ChatServer) error
}

func (b bank) reply(ctx context.Context, id string) (*testpb.Reply, error) {
	text, err := b.call(ctx, id)
	return &testpb.Reply{Text: text}, err
}

func (b bank) Get(ctx context.Context, r *testpb.Request) (*testpb.Reply, error) {
	return b.reply(ctx, r.GetId())
}

func (b bank) Debit(ctx context.Context, r *testpb.Request) (*testpb.Reply, error) {
	return b.reply(ctx, r.GetId())
}

func (b bank) Try(ctx context.Context, r *testpb.Request) (*testpb.Reply, error) {
	return b.reply(ctx, r.GetId())
}

func (b bank) Transfer(ctx context.Context, r *testpb.TransferRequest) (*testpb.Reply, error) {
	return b.reply(ctx, r.GetFrom()+">"+r.GetTo().GetId())
}

func (b bank) Upload(s testpb.Bank_UploadServer) error { return b.upload(s) }

func (b bank) Export(r *testpb.Request, s testpb.Bank_ExportServer) error { return b.export(r, s) }

func (b bank) Chat(s testpb.Bank_ChatServer) error { return b.chat(s) }

// never is a handler that must not run.
func never(t testing.TB) bank {
	return bank{
		call:   func(context.Context, string) (string, error) { t.Error("the handler ran"); return "", nil },
		upload: func(testpb.Bank_UploadServer) error { t.Error("the handler ran"); return nil },
		export: func(*testpb.Request, testpb.Bank_ExportServer) error { t.Error("the handler ran"); return nil },
		chat:   func(testpb.Bank_ChatServer) error { t.Error("the handler ran"); return nil },
	}
}

// keyOf answers with the key of its lease.
func keyOf(ctx context.Context, _ string) (string, error) {
	lease := core.LeaseFromContext(ctx)
	if lease == nil {
		return "no lease", nil
	}
	return fmt.Sprint(lease.Keys()), nil
}

// serve starts a server with the interceptors for rules and returns its client.
func serve(t testing.TB, b bank, rules grpclock.Rules, opts ...grpclock.Option) testpb.BankClient {
	t.Helper()
	return testpb.NewBankClient(dial(t, start(t, b,
		grpc.UnaryInterceptor(grpclock.Protect(rules, nil, opts...).Unary()),
		grpc.StreamInterceptor(grpclock.Protect(rules, nil, opts...).Stream()))))
}

// taken takes the interceptors of a protection, as a server does.
func taken(p *grpclock.Protection) *grpclock.Protection {
	p.ServerOptions()
	return p
}

// start starts a server in memory.
func start(t testing.TB, b bank, opts ...grpc.ServerOption) *bufconn.Listener {
	t.Helper()
	srv := grpc.NewServer(opts...)
	testpb.RegisterBankServer(srv, b)
	l := bufconn.Listen(1 << 16)
	run(t, srv, l)
	return l
}

func run(t testing.TB, srv *grpc.Server, l net.Listener) {
	t.Helper()
	done := make(chan error, 1)
	go func() { done <- srv.Serve(l) }()
	t.Cleanup(func() {
		srv.Stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

func dial(t testing.TB, l *bufconn.Listener, opts ...grpc.DialOption) *grpc.ClientConn {
	t.Helper()
	opts = append(opts, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return l.DialContext(ctx) }))
	conn, err := grpc.NewClient("passthrough:///bank.example", opts...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// refusal is a refusal as a client sees it.
type refusal struct {
	code     codes.Code
	reason   string
	retry    bool   // RetryInfo
	pushback string // the trailer, "" for none
}

// of holds an error and the trailers against the table.
func (want refusal) of(t testing.TB, err error, trailer metadata.MD) {
	t.Helper()
	st, _ := status.FromError(err)
	got := refusal{code: st.Code()}
	domain := ""
	for _, d := range st.Details() {
		switch d := d.(type) {
		case *errdetails.ErrorInfo:
			got.reason, domain = d.GetReason(), d.GetDomain()
		case *errdetails.RetryInfo:
			got.retry = true
			if delay := d.GetRetryDelay().AsDuration(); delay != time.Second {
				t.Errorf("retry delay %v", delay)
			}
		}
	}
	if all := trailer.Get("grpc-retry-pushback-ms"); len(all) == 1 {
		got.pushback = all[0]
	} else if len(all) > 1 {
		t.Errorf("push-backs %q", all)
	}
	if got != want || domain != "interlock" {
		t.Errorf("%+v (domain %q, %v); want %+v", got, domain, err, want)
	}
	if text := reason.Reason(want.reason).Text(); st.Message() != text {
		t.Errorf("message %q; want %q", st.Message(), text)
	}
}

// unary is a method of testpb.BankClient.
type unary func(context.Context, *testpb.Request, ...grpc.CallOption) (*testpb.Reply, error)

// by calls a method and holds its error against the table.
func (want refusal) by(ctx context.Context, t testing.TB, call unary, id string) {
	t.Helper()
	var trailer metadata.MD
	_, err := call(ctx, &testpb.Request{Id: id}, grpc.Trailer(&trailer))
	want.of(t, err, trailer)
}

var (
	held   = refusal{codes.Aborted, "held", true, ""}
	badKey = refusal{codes.InvalidArgument, "bad-key", false, ""}
	lost   = refusal{codes.Aborted, "lost", false, "-1"}
	wrong  = refusal{codes.Internal, "misconfigured", false, ""}
)
