package connectlock_test

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"strings"
	"testing"

	"connectrpc.com/connect/v2"
	"connectrpc.com/connect/v2/connectproto"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/dynamicpb"

	"github.com/interlock-go/interlock/connectlock"
	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/idempotency"
	"github.com/interlock-go/interlock/core/memstore"
	"github.com/interlock-go/interlock/core/reason"
	"github.com/interlock-go/interlock/grpclock"
	"github.com/interlock-go/interlock/internal/testkit"
)

// declared makes the rules that the proto of the bank declares.
func declared(t *testing.T, l *core.Locker) grpclock.Rules {
	t.Helper()
	rules, err := grpclock.FromProto(l)
	if err != nil {
		t.Fatal(err)
	}
	return rules
}

// keys answers with the keys of the lease.
func keys(ctx context.Context, _ *dynamicpb.Message) (string, error) {
	if lease := core.LeaseFromContext(ctx); lease != nil {
		return strings.Join(lease.Keys(), " "), nil
	}
	return "no lease", nil
}

func hold(t *testing.T, l *core.Locker, key string) {
	t.Helper()
	lease, err := l.TryLock(t.Context(), key)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = lease.Release(context.Background()) })
}

func TestTheProtoDeclaresTheLocks(t *testing.T) {
	locker := testkit.Locker(t)
	rules := declared(t, locker)
	protection := connectlock.Protect(rules, nil)
	server := newServer(keys, nil, protection.Interceptor())
	if err := protection.Validate(server); err != nil {
		t.Error(err)
	}
	srv := serve(t, server)
	for name, options := range protocols {
		for _, procedure := range []string{debit, get} {
			if text, err := send(t.Context(), dial(srv, options...), procedure, "id", "42"); text != "account/42" || err != nil {
				t.Errorf("%s, %s: %q, %v", name, procedure, text, err)
			}
		}
	}
}

// Every client reads the same details, clients of other libraries too.
func TestEveryProtocolHasTheSameRefusal(t *testing.T) {
	locker := testkit.Locker(t)
	srv := serve(t, newServer(keys, nil, connectlock.Protect(declared(t, locker), nil).Interceptor()))
	hold(t, locker, "account/42")
	want := []proto.Message{
		&errdetails.ErrorInfo{Reason: string(reason.Held), Domain: grpclock.Domain, Metadata: map[string]string{"method": debit}},
		grpcRetryInfo,
	}
	same := func(name string, got []proto.Message) {
		if len(got) != len(want) || !proto.Equal(got[0], want[0]) || !proto.Equal(got[1], want[1]) {
			t.Errorf("%s: %v; want %v", name, got, want)
		}
	}
	for name, options := range protocols {
		_, err := send(t.Context(), dial(srv, options...), debit, "id", "42")
		var refused *connect.Error
		if !errors.As(err, &refused) || refused.Code() != connect.CodeAborted || refused.Message() != reason.Held.Text() {
			t.Fatalf("%s: %v", name, err)
		}
		var got []proto.Message
		for _, packed := range refused.Details() {
			detail, err := connectproto.UnmarshalErrorDetail(packed)
			if err != nil {
				t.Fatal(err)
			}
			got = append(got, detail)
		}
		same(name, got)
	}

	conn, err := grpc.NewClient(srv.Listener.Addr().String(), grpc.WithTransportCredentials(
		credentials.NewTLS(&tls.Config{RootCAs: pool(srv), ServerName: "example.com"})))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	err = conn.Invoke(t.Context(), debit, message("Request", "id", "42"), message("Reply"))
	var got []proto.Message
	for _, detail := range status.Convert(err).Details() {
		got = append(got, detail.(proto.Message))
	}
	same("grpc-go", got)
}

func TestValidateFindsWhatCannotWork(t *testing.T) {
	locker, engine := testkit.Locker(t), testkit.Engine(t)
	lock := core.Serialize(locker, "account/{id}")
	all := grpclock.Rules{debit: lock, get: lock, chat: lock, listen: lock}
	without := func(procedure string) grpclock.Rules {
		rules := grpclock.Rules{}
		for name, rule := range all {
			if name != procedure {
				rules[name] = rule
			}
		}
		return rules
	}
	server := newServer(keys, nil)
	for name, c := range map[string]struct {
		rules   grpclock.Rules
		methods grpclock.Methods
		want    string
	}{
		"whole":                     {all, nil, ""},
		"by an engine":              {without(debit), grpclock.Methods{debit: engine.With(idempotency.Under(lock))}, ""},
		"by an engine with no lock": {without(debit), grpclock.Methods{debit: engine}, debit},
		"declared without a rule":   {without(chat), nil, chat},
		"no such method":            {grpclock.Rules{debit: lock, get: lock, chat: lock, listen: lock, debit + "x": lock}, nil, "no such method"},
		"no such field":             {grpclock.Rules{debit: core.Serialize(locker, "x/{nope}"), get: lock, chat: lock, listen: lock}, nil, "nope"},
		"a stream that is replayed": {all, grpclock.Methods{listen: engine}, "stream"},
		"a key for no effect":       {all, grpclock.Methods{get: engine}, "NO_SIDE_EFFECTS"},
	} {
		switch err := started(server, c.rules, c.methods); {
		case c.want == "" && err != nil:
			t.Errorf("%s: %v", name, err)
		case c.want != "" && (!errors.Is(err, core.ErrConfig) || !strings.Contains(err.Error(), c.want)):
			t.Errorf("%s: %v; want ErrConfig with %q", name, err, c.want)
		}
	}
}

// started protects a server as a program does at its start. A panic is an error of the
// program, too.
func started(server *connect.Server, rules grpclock.Rules, methods grpclock.Methods) (err error) {
	defer func() {
		if p, ok := recover().(error); ok {
			err = p
		}
	}()
	protection := connectlock.Protect(rules, methods)
	protection.Interceptor()
	return protection.Validate(server)
}

func TestAServerWithoutTheInterceptorFailsAtStartUp(t *testing.T) {
	err := connectlock.Protect(declared(t, testkit.Locker(t)), nil).Validate(newServer(keys, nil))
	if !errors.Is(err, core.ErrConfig) || !strings.Contains(err.Error(), debit) || !strings.Contains(err.Error(), chat) {
		t.Errorf("%v; want ErrConfig with all methods that have rules", err)
	}
}

func TestErrorsOfAHandlerStayItsOwn(t *testing.T) {
	locker, engine := testkit.Locker(t), testkit.Engine(t)
	detail, err := connectproto.NewErrorDetail(&errdetails.ErrorInfo{Reason: "NO_FUNDS", Domain: "bank"})
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		err        error
		code, text string
		reason     string
	}{
		"of connect":   {connect.NewError(connect.CodeFailedPrecondition, "no funds").WithDetail(detail), "FailedPrecondition", "no funds", "NO_FUNDS"},
		"of a peer":    {connect.NewError(connect.CodeNotFound, "secret").WithRemote(), "Internal", "", ""},
		"of no kind":   {errors.New("secret"), "Unknown", "", ""},
		"of grpc-go":   {status.Error(5, "secret"), "Unknown", "", ""},
		"of a context": {fmt.Errorf("secret: %w", context.DeadlineExceeded), "DeadlineExceeded", "", ""},
	} {
		for guard, interceptor := range map[string]connect.ServerInterceptor{
			"Serialize":  connectlock.Protect(grpclock.Rules{debit: core.Serialize(locker, "account/{id}")}, nil).Interceptor(),
			"Idempotent": connectlock.Protect(nil, grpclock.Methods{debit: engine}).Interceptor(),
			"neither":    connectlock.Protect(nil, nil).Interceptor(),
		} {
			srv := serve(t, newServer(func(ctx context.Context, _ *dynamicpb.Message) (string, error) {
				_ = idempotency.MarkEffect(ctx) // the answer is stored, also if it is an error
				return "", c.err
			}, nil, interceptor))
			for range 2 {
				_, err := send(t.Context(), dial(srv), debit, "id", "42", "request_id", strings.ReplaceAll(name, " ", "-"))
				if o := outcome(err); o.Code != c.code || o.Detail != c.text || o.Reason != c.reason {
					t.Errorf("%s, %s: %+v", guard, name, o)
				}
			}
		}
	}
}

// A handler that hands on the refusal of another server has run: its client must not send
// the call again because of it.
func TestARefusalThatIsHandedOnLosesItsRetryHint(t *testing.T) {
	locker := testkit.Locker(t)
	lock := core.Serialize(locker, "account/{id}", core.Wait(0))
	behind := serve(t, newServer(keys, nil, connectlock.Protect(grpclock.Rules{debit: lock}, nil).Interceptor()))
	hold(t, locker, "account/1")
	for name, rules := range map[string]grpclock.Rules{"with a rule": {debit: core.Serialize(locker, "front/{id}")}, "without": nil} {
		front := serve(t, newServer(func(ctx context.Context, req *dynamicpb.Message) (string, error) {
			text, err := send(ctx, dial(behind), debit, "id", field(req, "id"))
			var theirs *connect.Error
			if errors.As(err, &theirs) { // made the handler's own, as a proxy would
				info, _ := connect.CallInfoForServerContext(ctx)
				info.ResponseTrailer().Set("grpc-retry-pushback-ms", "100")
				own := connect.NewError(theirs.Code(), theirs.Message())
				for _, detail := range theirs.Details() {
					own = own.WithDetail(detail)
				}
				return "", own
			}
			return text, err
		}, nil, connectlock.Protect(rules, nil).Interceptor()))
		ctx, info := connect.NewClientContext(t.Context())
		_, err := send(ctx, dial(front), debit, "id", "1")
		o := outcome(err)
		if o.Reason != string(reason.Held) || o.Retry != "" || fmt.Sprint(info.ResponseTrailer().Values("grpc-retry-pushback-ms")) != "[-1]" {
			t.Errorf("%s: %+v, %v", name, o, info.ResponseTrailer())
		}
	}
}

// A refusal of an interceptor further inside is this server's: its handler did not run.
func TestARefusalFurtherInsideKeepsItsRetryHint(t *testing.T) {
	locker, engine := testkit.Locker(t), testkit.Engine(t)
	lock := core.Serialize(locker, "account/{id}", core.Wait(0))
	srv := serve(t, newServer(keys, nil,
		connectlock.Protect(grpclock.Rules{debit: core.Serialize(locker, "outer/{id}")}, nil).Interceptor(),
		connectlock.Protect(nil, grpclock.Methods{debit: engine}).Interceptor(),
		connectlock.Protect(grpclock.Rules{debit: lock}, nil).Interceptor()))
	hold(t, locker, "account/1")
	for name, options := range protocols {
		ctx, info := connect.NewClientContext(t.Context())
		_, err := send(ctx, dial(srv, options...), debit, "id", "1", "request_id", "a")
		o := outcome(err)
		if o.Reason != string(reason.Held) || o.Retry != "1s" || fmt.Sprint(info.ResponseTrailer().Values("grpc-retry-pushback-ms")) != "[]" {
			t.Errorf("%s: %+v, %v", name, o, info.ResponseTrailer())
		}
	}
}

func TestRenderMakesTheError(t *testing.T) {
	locker := testkit.Locker(t)
	hold(t, locker, "account/1")
	for name, c := range map[string]struct {
		made       error
		code, text string
	}{
		"an error of connect":     {connect.NewError(connect.CodeNotFound, "gone"), "NotFound", "gone"},
		"whose cause is a status": {connect.NewError(connect.CodeNotFound, "gone").WithCause(status.Error(3, "secret")), "NotFound", "gone"},
		"a status":                {status.Error(5, "gone"), "NotFound", "gone"},
		"no error":                {nil, "Aborted", reason.Held.Text()},
		"another error":           {errors.New("secret"), "Unknown", ""},
	} {
		srv := serve(t, newServer(keys, nil, connectlock.Protect(declared(t, locker), nil,
			grpclock.Render(func(context.Context, string, *core.Refusal) error { return c.made })).Interceptor()))
		_, err := send(t.Context(), dial(srv), debit, "id", "1")
		if o := outcome(err); o.Code != c.code || o.Detail != c.text {
			t.Errorf("%s: %+v", name, o)
		}
	}
}

// A codec of the application's own may know no protobuf: rules on the header still work,
// and a rule that asks for a field is refused.
func TestAMethodWithoutASchemaHasRulesOnItsHeader(t *testing.T) {
	locker := testkit.Locker(t)
	for template, want := range map[string]string{"tenant/{header.X-Tenant}": "tenant/acme", "account/{id}": ""} {
		server := connect.NewServer(connectlock.Protect(grpclock.Rules{"/plain.Service/Call": core.Serialize(locker, template)}, nil).Interceptor())
		server.Register(connect.Method{Spec: connect.Spec{Procedure: "/plain.Service/Call"}, Handler: func(ctx context.Context, _ connect.Spec, s connect.ServerStream) error {
			req := message("Request")
			if err := s.Receive(req); err != nil {
				return err
			}
			text, _ := keys(ctx, req)
			return s.Send(message("Reply", "text", text))
		}})
		srv := serve(t, server)
		testkit.LogTo(t)
		ctx, info := connect.NewClientContext(t.Context())
		info.RequestHeader().Set("X-Tenant", "acme")
		reply := message("Reply")
		err := dial(srv).CallUnary(ctx, connect.Spec{Procedure: "/plain.Service/Call"}, message("Request", "id", "1"), reply)
		if want != "" && (err != nil || field(reply, "text") != want) {
			t.Errorf("%s: %v, %v", template, reply, err)
		}
		if want == "" && outcome(err).Reason != string(reason.Misconfigured) {
			t.Errorf("%s: %v", template, err)
		}
	}
}

// A proto that was loaded at run time has no generated types.
func TestAMethodWhoseProtoIsNotLinkedInHasRulesOnItsFields(t *testing.T) {
	method := newFile().Services().ByName("Bank").Methods().ByName("Debit")
	server := connect.NewServer(connectlock.Protect(grpclock.Rules{"/loaded.Bank/Debit": core.Serialize(testkit.Locker(t), "account/{id}")}, nil).Interceptor())
	server.Register(connect.Method{
		Spec: connect.Spec{Procedure: "/loaded.Bank/Debit", Schema: method},
		Handler: func(ctx context.Context, _ connect.Spec, s connect.ServerStream) error {
			req := dynamicpb.NewMessage(method.Input())
			if err := s.Receive(req); err != nil {
				return err
			}
			text, _ := keys(ctx, req)
			return s.Send(message("Reply", "text", text+" "+field(req, "id")))
		},
	})
	reply := message("Reply")
	err := dial(serve(t, server)).CallUnary(t.Context(), connect.Spec{Procedure: "/loaded.Bank/Debit"}, message("Request", "id", "1"), reply)
	if err != nil || field(reply, "text") != "account/1 1" {
		t.Errorf("%v, %v", reply, err)
	}
}

func TestHostIsWhatGRPCCallsTheAuthority(t *testing.T) {
	for _, name := range []string{"Host", ":authority"} {
		srv := serve(t, newServer(keys, nil, connectlock.Protect(grpclock.Rules{
			debit: core.Serialize(testkit.Locker(t), "host/{ctx.host}", core.ContextFunc("host", func(_ context.Context, req core.Request) (string, error) {
				return strings.Join(req.Header(name), ","), nil
			})),
		}, nil).Interceptor()))
		want, err := core.Key("host", srv.Listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		if text, err := send(t.Context(), dial(srv), debit); text != want || err != nil {
			t.Errorf("%s: %q, %v; want %q", name, text, err, want)
		}
	}
}

func TestAMessageThatCannotBeReadTakesNoLock(t *testing.T) {
	store := memstore.New()
	srv := serve(t, newServer(func(context.Context, *dynamicpb.Message) (string, error) {
		t.Error("the handler ran")
		return "", nil
	}, nil, connectlock.Protect(declared(t, testkit.LockerOn(t, store)), nil).Interceptor()))
	a := testkit.Do(t, srv, "POST", debit, testkit.WithBody("application/json", "{"))
	if a.Status != 400 || !strings.Contains(a.Body, "invalid_argument") {
		t.Errorf("%d %s", a.Status, a.Body)
	}
	if n := store.Requests(memstore.Acquire); n != 0 {
		t.Errorf("%d requests for a lock", n)
	}
}

// canned is a stream of a transport that has no server.
type canned struct {
	connect.ServerStream
	req  *dynamicpb.Message
	sent []any
}

func (c *canned) Receive(m any) error { proto.Merge(m.(proto.Message), c.req); return nil }
func (c *canned) Send(m any) error    { c.sent = append(c.sent, m); return nil }

func TestAnInterceptorNeedsNoServer(t *testing.T) {
	stream := &canned{req: message("Request", "id", "1")}
	intercept := connectlock.Protect(declared(t, testkit.Locker(t)), nil).Interceptor()
	err := intercept(func(ctx context.Context, _ connect.Spec, s connect.ServerStream) error {
		if method, _ := grpc.Method(ctx); method != debit {
			t.Errorf("method %q", method)
		}
		if err := s.Receive(message("Reply")); connect.CodeOf(err) != connect.CodeInternal {
			t.Errorf("%v; want an error for a message of another type", err)
		}
		if err := errors.Join(s.SendHeaders(), grpc.SendHeader(ctx, nil), s.Send(message("Reply", "text", "done"))); err != nil {
			t.Error(err)
		}
		if len(stream.sent) != 0 {
			t.Error("the reply was sent under the lock")
		}
		return nil
	})(t.Context(), bankSpec(debit), stream)
	if err != nil || len(stream.sent) != 1 {
		t.Errorf("%v, %v", stream.sent, err)
	}
}
