package connectlock_test

import (
	"context"
	"errors"
	"net/http/httptest"
	"regexp"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"connectrpc.com/connect/v2"
	"connectrpc.com/connect/v2/connecthttp"
	"connectrpc.com/connect/v2/connectproto"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
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

func TestAClientSendsARefusedCallAgain(t *testing.T) {
	locker := testkit.Locker(t)
	srv := serve(t, newServer(keys, echoes, connectlock.Protect(declared(t, locker), nil).Interceptor()))
	for name, options := range protocols {
		t.Run(name, func(t *testing.T) {
			lease, err := locker.TryLock(t.Context(), "account/42")
			if err != nil {
				t.Fatal(err)
			}
			var sent atomic.Int32
			// The next interceptor sees each try. The lock is free from the second on.
			counts := func(next connect.ClientFunc) connect.ClientFunc {
				return func(ctx context.Context, spec connect.Spec) (connect.ClientStream, error) {
					if sent.Add(1) == 2 {
						if err := lease.Release(ctx); err != nil {
							t.Error(err)
						}
					}
					return next(ctx, spec)
				}
			}
			client := connect.NewClient(connecthttp.NewTransport(srv.Client(), srv.URL, options...), connectlock.UnaryClientRetry(), counts)
			ctx, info := connect.NewClientContext(t.Context())
			text, err := send(ctx, client, debit, "id", "42")
			if text != "account/42" || err != nil || sent.Load() != 2 || info.ResponseTrailer().Has("grpc-retry-pushback-ms") {
				t.Errorf("%q, %v after %d tries; %v", text, err, sent.Load(), info.ResponseTrailer())
			}
			stream, err := client.CallClientStream(t.Context(), bankSpec(chat))
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = stream.Close() }()
			again, err := locker.TryLock(t.Context(), "account/42")
			if err != nil {
				t.Fatal(err)
			}
			err = errors.Join(stream.Send(message("Request", "id", "42")), stream.Receive(message("Reply")))
			if outcome(err).Reason != string(reason.Held) || sent.Load() != 3 {
				t.Errorf("%v after %d tries; want a stream to be opened once", err, sent.Load())
			}
			if err := again.Release(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestAClientSendsNothingAgainThatMayHaveHadAnEffect(t *testing.T) {
	locker := testkit.Locker(t)
	runs := 0
	srv := serve(t, newServer(func(context.Context, *dynamicpb.Message) (string, error) {
		runs++
		return "", connect.NewError(connect.CodeUnavailable, "not now")
	}, nil, connectlock.Protect(declared(t, locker), nil).Interceptor()))
	client := connect.NewClient(connecthttp.NewTransport(srv.Client(), srv.URL), connectlock.UnaryClientRetry())
	if _, err := send(t.Context(), client, debit, "id", "1"); outcome(err).Detail != "not now" || runs != 1 {
		t.Errorf("%v after %d runs", err, runs)
	}
}

// The last refusal comes back as the server sent it, and the end of a call as connect's.
func TestAClientGivesUp(t *testing.T) {
	locker := testkit.Locker(t)
	srv := serve(t, newServer(keys, nil, connectlock.Protect(declared(t, locker), nil).Interceptor()))
	hold(t, locker, "account/42")
	transport := connecthttp.NewTransport(srv.Client(), srv.URL)
	_, err := send(t.Context(), connect.NewClient(transport, connectlock.UnaryClientRetry(grpclock.Tries(2))), debit, "id", "42")
	if o := outcome(err); o.Reason != string(reason.Held) || o.Retry != "1s" {
		t.Errorf("%v", err)
	}
}

// refusing is a transport to a server that refuses every call.
type refusing struct {
	tries atomic.Int32
	tried func() // called in each try
}

func (r *refusing) NewClientStream(context.Context, connect.Spec) (connect.ClientStream, error) {
	r.tries.Add(1)
	return r, nil
}
func (r *refusing) SendHeaders() error { return nil }
func (r *refusing) Send(any) error     { return nil }
func (r *refusing) CloseSend() error   { return nil }
func (r *refusing) Close() error       { return nil }
func (r *refusing) Receive(any) error {
	r.tried()
	err := connect.NewError(connect.CodeAborted, "no").WithRemote()
	for _, m := range []proto.Message{
		&errdetails.ErrorInfo{Domain: grpclock.Domain, Metadata: map[string]string{"method": debit}}, grpcRetryInfo,
	} {
		detail, _ := connectproto.NewErrorDetail(m)
		err = err.WithDetail(detail)
	}
	return err
}

func TestACallThatEndsIsNotSentAgain(t *testing.T) {
	for name, end := range map[string]func(cancel func(), s connect.ClientStream){
		"its context ends": func(cancel func(), _ connect.ClientStream) { cancel() },
		"it is closed":     func(_ func(), s connect.ClientStream) { _ = s.Close() },
	} {
		synctest.Test(t, func(t *testing.T) {
			transport := &refusing{}
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			stream, err := connect.NewClient(transport, connectlock.UnaryClientRetry()).CallClientStream(ctx, bankSpec(debit))
			if err != nil {
				t.Fatal(err)
			}
			transport.tried = func() { time.AfterFunc(time.Millisecond, func() { end(cancel, stream) }) }
			err = errors.Join(stream.SendHeaders(), stream.Send(message("Request")), stream.CloseSend(), stream.Receive(message("Reply")))
			if connect.CodeOf(err) != connect.CodeCanceled || transport.tries.Load() != 1 {
				t.Errorf("%s: %v after %d tries", name, err, transport.tries.Load())
			}
		})
	}
}

func TestAClientGivesEachCallOneKey(t *testing.T) {
	locker := testkit.Locker(t)
	srv := serve(t, newServer(keys, echoes, connectlock.Protect(declared(t, locker), nil).Interceptor()))
	for name, options := range protocols {
		t.Run(name, func(t *testing.T) {
			lease, err := locker.TryLock(t.Context(), "account/42")
			if err != nil {
				t.Fatal(err)
			}
			var sent []string
			// Interceptors after the retry see each try. The lock is free from the second on.
			notes := func(next connect.ClientFunc) connect.ClientFunc {
				return func(ctx context.Context, spec connect.Spec) (connect.ClientStream, error) {
					info, _ := connect.CallInfoForClientContext(ctx)
					if sent = append(sent, info.RequestHeader().Get(idempotency.KeyHeader)); len(sent) == 2 {
						if err := lease.Release(ctx); err != nil {
							t.Error(err)
						}
					}
					return next(ctx, spec)
				}
			}
			client := connect.NewClient(connecthttp.NewTransport(srv.Client(), srv.URL, options...),
				connectlock.UnaryClientIdempotencyKey(), connectlock.UnaryClientRetry(), notes)
			ctx, info := connect.NewClientContext(t.Context())
			for range 2 { // with one context
				if text, err := send(ctx, client, debit, "id", "42"); text != "account/42" || err != nil || info.RequestHeader().Len() != 0 {
					t.Fatalf("%q, %v, leaves %v", text, err, info.RequestHeader())
				}
			}
			info.RequestHeader().Set(idempotency.KeyHeader, "mine")
			if _, err := send(ctx, client, debit, "id", "42"); err != nil || info.RequestHeader().Get(idempotency.KeyHeader) != "mine" {
				t.Errorf("%v, leaves %v", err, info.RequestHeader())
			}
			if _, err := send(t.Context(), client, get, "id", "42"); err != nil {
				t.Error(err)
			}
			stream, err := client.CallClientStream(t.Context(), bankSpec(chat))
			if err != nil {
				t.Fatal(err)
			}
			if err := stream.Close(); err != nil {
				t.Error(err)
			}
			version7 := regexp.MustCompile(`^[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$`)
			if len(sent) != 6 || sent[0] != sent[1] || sent[2] == sent[0] || !version7.MatchString(sent[0]) || !version7.MatchString(sent[2]) ||
				!slices.Equal(sent[3:], []string{"mine", "", ""}) {
				t.Errorf("%q; want one key for two tries, another for the next call, the caller's, and none for what has no side effect and for a stream", sent)
			}
		})
	}
}

// A call that is closed while it is sent sends its key until then.
func TestAKeyStaysUntilItsCallHasEnded(t *testing.T) {
	ctx, info := connect.NewClientContext(t.Context())
	key := func() string { return info.RequestHeader().Get(idempotency.KeyHeader) }
	for name, reply := range map[string]bool{"its reply is received": true, "its reply is not received": false} {
		transport := &refusing{}
		stream, err := connect.NewClient(transport, connectlock.UnaryClientIdempotencyKey()).CallClientStream(ctx, bankSpec(debit))
		if err != nil {
			t.Fatal(err)
		}
		sent := key()
		transport.tried = func() {
			if err := stream.Close(); err != nil || key() != sent {
				t.Errorf("%s: closed with %v, and the key is %q; want %q", name, err, key(), sent)
			}
		}
		if reply {
			_ = stream.Receive(message("Reply")) // a refusal
		} else if err := stream.Close(); err != nil {
			t.Error(err)
		}
		if sent == "" || key() != "" {
			t.Errorf("%s: the key was %q and is %q", name, sent, key())
		}
	}
	down := errors.New("no connection")
	client := connect.NewClient(&refusing{}, connectlock.UnaryClientIdempotencyKey(), func(connect.ClientFunc) connect.ClientFunc {
		return func(context.Context, connect.Spec) (connect.ClientStream, error) { return nil, down }
	})
	if _, err := send(ctx, client, debit); !errors.Is(err, down) || key() != "" {
		t.Errorf("%v, and the key is %q", err, key())
	}
}

// A handler can hold a lock and call a service that locks the same key: it would wait for
// itself.
func TestACallForALockOfItsCallerIsRefusedAtOnce(t *testing.T) {
	store := memstore.New()
	gateway, ledger := testkit.LockerOn(t, store), testkit.LockerOn(t, store)
	srv := serve(t, newServer(keys, echoes, connectlock.Protect(declared(t, ledger), nil).Interceptor()))
	lease, err := gateway.Lock(t.Context(), "account/42")
	if err != nil {
		t.Fatal(err)
	}
	for name, options := range protocols {
		var sent atomic.Int32
		counts := func(next connect.ClientFunc) connect.ClientFunc {
			return func(ctx context.Context, spec connect.Spec) (connect.ClientStream, error) {
				sent.Add(1)
				return next(ctx, spec)
			}
		}
		client := connect.NewClient(connecthttp.NewTransport(srv.Client(), srv.URL, options...), connectlock.UnaryClientRetry(), counts)
		_, err := send(lease.Context(), client, debit, "id", "42")
		if outcome(err).Reason != string(reason.HeldByCaller) || sent.Load() != 1 {
			t.Errorf("%s: %v after %d tries; want held-by-caller after one", name, err, sent.Load())
		}
	}
	if err := lease.Release(t.Context()); err != nil {
		t.Error(err)
	}
}

// A service that owns a resource refuses what an outdated holder sends, and no try changes that.
// The context of a client keeps its headers, which must not be sent after the lock.
func TestTheTokensOfTheCallerAreSentWithTheCallsUnderItsLock(t *testing.T) {
	testkit.LogTo(t)
	gateway := testkit.LockerOn(t, memstore.New())
	var latest, sent atomic.Int64
	rule := core.Fenced("account/{id}", func(_ context.Context, fences []core.Fence) error {
		if fences[0].Token < latest.Load() {
			return core.ErrLost
		}
		return nil
	})
	srv := serve(t, newServer(keys, echoes, connectlock.Protect(grpclock.Rules{debit: rule}, nil).Interceptor()))
	for name, options := range protocols {
		latest.Store(0)
		sent.Store(0)
		counts := func(next connect.ClientFunc) connect.ClientFunc {
			return func(ctx context.Context, spec connect.Spec) (connect.ClientStream, error) {
				sent.Add(1)
				return next(ctx, spec)
			}
		}
		client := connect.NewClient(connecthttp.NewTransport(srv.Client(), srv.URL, options...),
			connectlock.UnaryClientRetry(grpclock.SendFences()), counts)
		outside, info := connect.NewClientContext(t.Context())
		lease, err := gateway.Lock(outside, "account/42")
		if err != nil {
			t.Fatal(err)
		}
		call := func(ctx context.Context, want reason.Reason) {
			t.Helper()
			if _, err := send(ctx, client, debit, "id", "42"); outcome(err).Reason != string(want) {
				t.Errorf("%s: %v; want %q", name, err, want)
			}
		}
		call(lease.Context(), "")
		latest.Store(lease.Token() + 1)
		call(lease.Context(), reason.StaleToken)
		call(outside, reason.TokenMissing)
		if n := sent.Load(); n != 3 || info.RequestHeader().Has(core.FencesHeader) {
			t.Errorf("%s: three calls were sent %d times, the context has %v; want each once, and no tokens", name, n, info.RequestHeader())
		}
		if err := lease.Release(t.Context()); err != nil {
			t.Error(err)
		}
	}
}

// A service in between that holds nothing knows the locks of its caller, with an interceptor of
// this module or without, in unary calls and in streams.
func TestAServiceInBetweenPassesTheLocksOfItsCallerOn(t *testing.T) {
	store := memstore.New()
	gateway, ledger := testkit.LockerOn(t, store), testkit.LockerOn(t, store)
	last := serve(t, newServer(keys, echoes, connectlock.Protect(declared(t, ledger), nil).Interceptor()))
	lease, err := gateway.Lock(t.Context(), "account/42")
	if err != nil {
		t.Fatal(err)
	}
	client := func(srv *httptest.Server) *connect.Client {
		return connect.NewClient(connecthttp.NewTransport(srv.Client(), srv.URL, protocols["gRPC"]...), connectlock.UnaryClientRetry())
	}
	talk := func(ctx context.Context, srv *httptest.Server) error {
		stream, err := client(srv).CallClientStream(ctx, bankSpec(chat))
		if err != nil {
			return err
		}
		defer func() { _ = stream.Close() }()
		return errors.Join(stream.Send(message("Request", "id", "42")), stream.CloseSend(), stream.Receive(message("Reply")))
	}
	between := []connect.ServerInterceptor{nil, connectlock.Protect(nil, nil).Interceptor()}
	for _, interceptor := range between {
		var chain []connect.ServerInterceptor
		if interceptor != nil {
			chain = append(chain, interceptor)
		}
		srv := serve(t, newServer(func(ctx context.Context, _ *dynamicpb.Message) (string, error) {
			_, err := send(ctx, client(last), debit, "id", "42")
			return outcome(err).Reason, nil
		}, func(ctx context.Context, _ connect.Spec, s connect.ServerStream) error {
			if err := s.Receive(message("Request")); err != nil { // else the client may send to a stream that has ended
				return err
			}
			return s.Send(message("Reply", "text", outcome(talk(ctx, last)).Reason))
		}, chain...))
		if text, err := send(lease.Context(), client(srv), get, "id", "42"); text != string(reason.HeldByCaller) {
			t.Errorf("unary, %d interceptors: %q, %v; want %q", len(chain), text, err, reason.HeldByCaller)
		}
		stream, err := client(srv).CallClientStream(lease.Context(), bankSpec(chat))
		if err != nil {
			t.Fatal(err)
		}
		reply := message("Reply")
		if err := errors.Join(stream.Send(message("Request", "id", "42")), stream.Receive(reply)); err != nil || field(reply, "text") != string(reason.HeldByCaller) {
			t.Errorf("stream, %d interceptors: %q, %v; want %q", len(chain), field(reply, "text"), err, reason.HeldByCaller)
		}
		_ = stream.Close()
	}
	if err := lease.Release(t.Context()); err != nil {
		t.Error(err)
	}
}
