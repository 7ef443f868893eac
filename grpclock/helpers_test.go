package grpclock_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/driver"
	"github.com/interlock-go/interlock/core/redisstore"
	"github.com/interlock-go/interlock/grpclock"
	"github.com/interlock-go/interlock/grpclock/internal/testpb"
	"github.com/interlock-go/interlock/internal/redistest"
)

func TestMain(m *testing.M) { redistest.Main(m) }

// newLocker returns a locker on a server.
func newLocker(t testing.TB, rdb *redis.Client, opts ...core.Option) *core.Locker {
	t.Helper()
	store, err := redisstore.New(rdb, redisstore.Logger(slog.New(slog.DiscardHandler)))
	if err != nil {
		t.Fatal(err)
	}
	locker, err := core.New(store, opts...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		if err := locker.Close(ctx); err != nil {
			t.Error(err)
		}
		if err := store.Close(); err != nil {
			t.Error(err)
		}
	})
	return locker
}

// annotated returns the rules of the test service's proto.
func annotated(t testing.TB, locker *core.Locker, opts ...core.Option) grpclock.Rules {
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
		grpc.UnaryInterceptor(grpclock.UnaryServerInterceptor(rules, opts...)),
		grpc.StreamInterceptor(grpclock.StreamServerInterceptor(rules, opts...)))))
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

// refusal is what a client sees of one.
type refusal struct {
	code     codes.Code
	reason   string
	retry    bool   // RetryInfo
	pushback string // the trailer, "" for none
}

// wants holds an error and the trailers against the table.
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
			if delay := d.GetRetryDelay().AsDuration(); delay != 100*time.Millisecond {
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
	if text := core.Reason(want.reason).Text(); st.Message() != text {
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
	held        = refusal{codes.Aborted, "held", true, "100"}
	queueFull   = refusal{codes.Aborted, "queue-full", true, "100"}
	badKey      = refusal{codes.InvalidArgument, "bad-key", false, ""}
	unavailable = refusal{codes.Unavailable, "unavailable", false, ""}
	lost        = refusal{codes.Aborted, "lost", false, "-1"}
	wrong       = refusal{codes.Internal, "misconfigured", false, ""}
)

// until waits for a state that has no event of its own.
func until(t testing.TB, what string, f func() bool) {
	t.Helper()
	for end := time.Now().Add(10 * time.Second); !f(); runtime.Gosched() {
		if time.Now().After(end) {
			t.Fatal("never: " + what)
		}
	}
}

// queued waits until n callers wait in the locker.
func queued(t testing.TB, locker *core.Locker, n int) {
	t.Helper()
	until(t, fmt.Sprintf("%d queued", n), func() bool {
		waiters := 0
		for _, h := range locker.Held() {
			waiters += h.Waiters
		}
		return waiters == n
	})
}

// gate is a handler that says when it is inside and stays until it is let go.
type gate struct{ inside, leave chan struct{} }

func newGate() gate { return gate{make(chan struct{}, 100), make(chan struct{})} }

func (g gate) call(context.Context, string) (string, error) {
	g.inside <- struct{}{}
	<-g.leave
	return "left", nil
}

// hold makes a call that stays inside until the returned function is called.
func (g gate) hold(t testing.TB, call unary, id string) (leave func()) {
	t.Helper()
	var wg sync.WaitGroup
	wg.Go(func() {
		if _, err := call(context.Background(), &testpb.Request{Id: id}); err != nil {
			t.Error(err)
		}
	})
	<-g.inside
	return func() { close(g.leave); wg.Wait() }
}

// lose takes the lease away from the handler and waits until its context ends.
func lose(ctx context.Context, t testing.TB, rdb *redis.Client) {
	if n, err := rdb.Del(ctx, "interlock:{"+core.LeaseFromContext(ctx).Key()+"}").Result(); n != 1 || err != nil {
		t.Errorf("deleted %d, %v", n, err)
	}
	<-ctx.Done()
	if cause := context.Cause(ctx); !errors.Is(cause, core.ErrLost) {
		t.Errorf("cause %v; want ErrLost", cause)
	}
}

// logTo collects what is logged until the test ends.
func logTo(t testing.TB) *buffer {
	b := new(buffer)
	old := slog.Default()
	slog.SetDefault(slog.New(slog.NewTextHandler(b, nil)))
	t.Cleanup(func() { slog.SetDefault(old) })
	return b
}

// buffer is a bytes.Buffer for several goroutines.
type buffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *buffer) Write(p []byte) (int, error) { b.mu.Lock(); defer b.mu.Unlock(); return b.b.Write(p) }

func (b *buffer) String() string { b.mu.Lock(); defer b.mu.Unlock(); return b.b.String() }

// free is a Store whose locks are always free, and cost nothing: what is left is
// the interceptor.
type free struct{}

func (free) Acquire(context.Context, driver.AcquireRequest) (driver.Reply, error) {
	return driver.Reply{Granted: true, Token: 1, Sent: time.Now()}, nil
}

func (free) Renew(_ context.Context, batch []driver.Renewal, done func(int, bool, error)) {
	for i := range batch {
		done(i, false, nil)
	}
}

func (free) Release(context.Context, driver.ReleaseRequest) error { return nil }

func (free) Watch(string, time.Time, func(driver.Signal)) (stop func()) { return func() {} }

// freeLocker returns a locker without a server.
func freeLocker(t testing.TB, opts ...core.Option) *core.Locker {
	t.Helper()
	locker, err := core.New(free{}, opts...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = locker.Close(context.Background()) })
	return locker
}
