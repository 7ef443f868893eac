package connectlock_test

import (
	"context"
	"errors"
	"io"
	"testing"
	"time"

	"connectrpc.com/connect/v2"
	"connectrpc.com/connect/v2/connecthttp"

	"github.com/interlock-go/interlock/connectlock"
	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/memstore"
	"github.com/interlock-go/interlock/core/reason"
	"github.com/interlock-go/interlock/grpclock"
	"github.com/interlock-go/interlock/internal/testkit"
)

// echoes answers each message of a stream with the lease's keys and the message's id.
func echoes(ctx context.Context, _ connect.Spec, s connect.ServerStream) error {
	for {
		req := message("Request")
		switch err := s.Receive(req); {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return err
		}
		if err := s.Send(message("Reply", "text", core.LeaseFromContext(ctx).Key()+" "+field(req, "id"))); err != nil {
			return err
		}
	}
}

// bidi are the protocols of streams both ways.
var bidi = map[string][]connecthttp.Option{"connect": protocols["connect"], "gRPC": protocols["gRPC"]}

func TestAStreamBothWaysHoldsTheLockOfItsFirstMessage(t *testing.T) {
	for name, options := range bidi {
		t.Run(name, func(t *testing.T) {
			store := memstore.New()
			locker := testkit.LockerOn(t, store)
			srv := serve(t, newServer(keys, echoes, connectlock.Protect(declared(t, locker), nil).Interceptor()))
			stream, err := dial(srv, options...).CallClientStream(t.Context(), bankSpec(chat))
			if err != nil {
				t.Fatal(err)
			}
			for _, id := range []string{"42", "43"} {
				reply := message("Reply")
				if err := errors.Join(stream.Send(message("Request", "id", id)), stream.Receive(reply)); err != nil {
					t.Fatal(err)
				}
				if got := field(reply, "text"); got != "account/42 "+id {
					t.Errorf("%q", got)
				}
				if testkit.Free(store, "account/42") {
					t.Error("the lock is free while the stream runs")
				}
			}
			if err := stream.CloseSend(); err != nil {
				t.Fatal(err)
			}
			if err := stream.Receive(message("Reply")); !errors.Is(err, io.EOF) {
				t.Error(err)
			}
			testkit.Until(t, "the lock is free", func() bool { return testkit.Free(store, "account/42") })
		})
	}
}

func TestAStreamWhoseRuleNeedsTheHeaderWaitsForNoMessage(t *testing.T) {
	for name, options := range bidi {
		t.Run(name, func(t *testing.T) {
			greets := func(ctx context.Context, _ connect.Spec, s connect.ServerStream) error {
				return s.Send(message("Reply", "text", core.LeaseFromContext(ctx).Key()))
			}
			srv := serve(t, newServer(keys, greets, connectlock.Protect(declared(t, testkit.Locker(t)), nil).Interceptor()))
			ctx, info := connect.NewClientContext(t.Context())
			info.RequestHeader().Set("X-Tenant", "acme")
			stream, err := dial(srv, options...).CallClientStream(ctx, bankSpec(listen))
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = stream.Close() }()
			reply := message("Reply")
			if err := errors.Join(stream.SendHeaders(), stream.Receive(reply)); err != nil || field(reply, "text") != "tenant/acme" {
				t.Errorf("%v, %v", reply, err)
			}
		})
	}
}

func TestAStreamWhoseFirstMessageDoesNotComeIsRefused(t *testing.T) {
	locker := testkit.Locker(t)
	srv := serve(t, newServer(keys, echoes, connectlock.Protect(declared(t, locker), nil, grpclock.FirstMessageWait(time.Millisecond)).Interceptor()))
	for name, options := range bidi {
		stream, err := dial(srv, options...).CallClientStream(t.Context(), bankSpec(chat))
		if err != nil {
			t.Fatal(err)
		}
		err = errors.Join(stream.SendHeaders(), stream.Receive(message("Reply")))
		if o := outcome(err); o.Reason != string(reason.BodyTimeout) || o.Code != "DeadlineExceeded" {
			t.Errorf("%s: %+v, %v", name, o, err)
		}
		_ = stream.Close()
	}
}

// After a loss neither a message nor a reply passes.
func TestAStreamThatLosesItsLockEnds(t *testing.T) {
	store := memstore.New()
	locker := testkit.LockerOn(t, store)
	var got [2]error
	loses := func(ctx context.Context, _ connect.Spec, s connect.ServerStream) error {
		if err := s.Receive(message("Request")); err != nil {
			return err
		}
		testkit.Lose(ctx, t, store)
		got = [2]error{s.Receive(message("Request")), s.Send(message("Reply", "text", "too late"))}
		return got[1]
	}
	srv := serve(t, newServer(keys, loses, connectlock.Protect(declared(t, locker), nil).Interceptor()))
	stream, err := dial(srv).CallClientStream(t.Context(), bankSpec(chat))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = stream.Close() }()
	if err := errors.Join(stream.Send(message("Request", "id", "42")), stream.Send(message("Request", "id", "42"))); err != nil {
		t.Fatal(err)
	}
	if o := outcome(stream.Receive(message("Reply"))); o.Reason != string(reason.Lost) || o.Retry != "" {
		t.Errorf("%+v", o)
	}
	for _, err := range got {
		if connect.CodeOf(err) != connect.CodeCanceled {
			t.Errorf("%v; want CodeCanceled", err)
		}
	}
}
