package connectlock_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"connectrpc.com/connect/v2"
	"connectrpc.com/connect/v2/connecthttp"
	"google.golang.org/protobuf/types/dynamicpb"

	"github.com/interlock-go/interlock/connectlock"
	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/idempotency"
	"github.com/interlock-go/interlock/core/memstore"
	"github.com/interlock-go/interlock/core/reason"
	"github.com/interlock-go/interlock/grpclock"
	"github.com/interlock-go/interlock/internal/testkit"
)

func TestAGetRequestNeedsNoKeyAndSharesTheLock(t *testing.T) {
	store := memstore.New()
	locker := testkit.LockerOn(t, store)
	engine := testkit.Engine(t)
	method := ""
	srv := serve(t, newServer(func(ctx context.Context, req *dynamicpb.Message) (string, error) {
		info, _ := connecthttp.ServerInfoForContext(ctx)
		method = info.HTTPMethod()
		return keys(ctx, req)
	}, nil, connectlock.Protect(declared(t, locker), grpclock.Methods{debit: engine}).Interceptor()))
	client := dial(srv, connecthttp.WithHTTPGet())
	reader, err := locker.LockShared(t.Context(), "account/42")
	if err != nil {
		t.Fatal(err)
	}
	if text, err := send(t.Context(), client, get, "id", "42"); text != "account/42" || err != nil || method != "GET" {
		t.Errorf("%q, %v by %s", text, err, method)
	}
	if err := reader.Release(t.Context()); err != nil {
		t.Fatal(err)
	}
	hold(t, locker, "account/42")
	if _, err := send(t.Context(), client, get, "id", "42"); outcome(err).Reason != string(reason.Held) {
		t.Errorf("%v; want held", err)
	}
}

func TestTheKeyIsTheFieldRequestIDOrTheHeader(t *testing.T) {
	engine := testkit.Engine(t)
	runs := 0
	srv := serve(t, newServer(func(context.Context, *dynamicpb.Message) (string, error) {
		runs++
		return fmt.Sprint(runs), nil
	}, nil, connectlock.Protect(nil, grpclock.Methods{debit: engine}).Interceptor()))
	for name, options := range protocols { // all protocols of a server share its records
		if text, err := send(t.Context(), dial(srv, options...), debit, "id", "42", "request_id", "a"); text != "1" || err != nil {
			t.Errorf("%s: %q, %v", name, text, err)
		}
	}
	for name, options := range protocols {
		ctx, info := connect.NewClientContext(t.Context())
		info.RequestHeader().Set(idempotency.KeyHeader, "b")
		if text, err := send(ctx, dial(srv, options...), debit, "id", "42"); text != "2" || err != nil {
			t.Errorf("%s: %q, %v", name, text, err)
		}
	}
	if _, err := send(t.Context(), dial(srv), debit, "id", "42"); outcome(err).Reason != string(reason.KeyMissing) {
		t.Errorf("%v; want the key missing", err)
	}
}

// Metadata of the handler belongs to the answer, metadata of middleware in front does not.
func TestResponseMetadataIsStoredWithTheAnswer(t *testing.T) {
	store := memstore.New()
	lock := core.Serialize(testkit.LockerOn(t, store), "account/{id}")
	engine := testkit.EngineOn(t, store, idempotency.Global(), idempotency.Under(lock))
	front, loses := "one", false
	srv := serve(t, newServer(func(ctx context.Context, _ *dynamicpb.Message) (string, error) {
		info, _ := connect.CallInfoForServerContext(ctx)
		info.ResponseHeader().Set("X-Receipt", "r1")
		info.ResponseHeader().Set("X-Raw-Bin", connect.EncodeBinaryHeader([]byte{0, 255}))
		info.ResponseTrailer().Set("X-Balance", "7")
		if loses {
			info.ResponseHeader().Set("X-Front", "the handler's")
			testkit.Lose(ctx, t, store)
		}
		return "done", ctx.Err()
	}, nil, func(next connect.ServerFunc) connect.ServerFunc {
		return func(ctx context.Context, spec connect.Spec, stream connect.ServerStream) error {
			info, _ := connect.CallInfoForServerContext(ctx)
			info.ResponseHeader().Set("X-Front", front)
			return next(ctx, spec, stream)
		}
	}, connectlock.Protect(nil, grpclock.Methods{debit: engine}).Interceptor()))
	call := func(key string) (string, string, error) {
		ctx, info := connect.NewClientContext(t.Context())
		_, err := send(ctx, dial(srv), debit, "id", "42", "request_id", key)
		h := info.ResponseHeader()
		return fmt.Sprint(h.Values("X-Front"), h.Values("X-Receipt"), h.Values("X-Raw-Bin"), info.ResponseTrailer().Values("X-Balance")), h.Get(idempotency.ReplayedHeader), err
	}
	if got, replayed, err := call("a"); got != "[one] [r1] [AP8] [7]" || replayed != "" || err != nil {
		t.Errorf("first: %s %q, %v", got, replayed, err)
	}
	front = "two"
	if got, replayed, err := call("a"); got != "[two] [r1] [AP8] [7]" || replayed != "true" || err != nil {
		t.Errorf("replay: %s %q, %v", got, replayed, err)
	}
	loses = true
	if got, _, err := call("b"); got != "[two] [] [] []" || outcome(err).Reason != string(reason.Lost) {
		t.Errorf("refusal: %s, %v", got, err)
	}
}

// A stream cannot be replayed, and must not run as if it were.
func TestAnIdempotentStreamIsRefused(t *testing.T) {
	engine := testkit.Engine(t)
	wantPanic := func() (thrown any) {
		defer func() { thrown = recover() }()
		connectlock.Protect(nil, grpclock.Methods{chat: engine}).Interceptor()
		return nil
	}
	if thrown := wantPanic(); thrown == nil || !strings.Contains(fmt.Sprint(thrown), chat) {
		t.Errorf("%v", thrown)
	}
	server := connect.NewServer(connectlock.Protect(nil, grpclock.Methods{"/plain.Service/Stream": engine}).Interceptor())
	spec := connect.Spec{Procedure: "/plain.Service/Stream", StreamType: connect.StreamTypeBidi}
	server.Register(connect.Method{Spec: spec, Handler: func(context.Context, connect.Spec, connect.ServerStream) error {
		t.Error("the handler ran")
		return nil
	}})
	stream, err := dial(serve(t, server)).CallClientStream(t.Context(), spec)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = stream.Close() }()
	if err := errors.Join(stream.SendHeaders(), stream.Receive(message("Reply"))); connect.CodeOf(err) != connect.CodeInternal {
		t.Error(err)
	}
}
