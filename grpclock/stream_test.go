package grpclock_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/memstore"
	"github.com/interlock-go/interlock/core/reason"
	"github.com/interlock-go/interlock/grpclock"
	"github.com/interlock-go/interlock/grpclock/internal/testpb"
	"github.com/interlock-go/interlock/internal/testkit"
)

// tenant is a context with the metadata that Chat is locked by.
func tenant(t testing.TB) context.Context {
	return metadata.AppendToOutgoingContext(t.Context(), "x-tenant", "acme")
}

func TestClientStreamIsKeyedByItsFirstMessageWhichTheHandlerReceivesToo(t *testing.T) {
	locker := testkit.Locker(t)
	began := make(chan struct{})
	client := serve(t, bank{
		call: keyOf,
		upload: func(s testpb.Bank_UploadServer) error {
			close(began)
			var got []string
			for {
				r, err := s.Recv()
				if errors.Is(err, io.EOF) {
					return s.SendAndClose(&testpb.Reply{Text: fmt.Sprint(got, core.LeaseFromContext(s.Context()).Keys())})
				} else if err != nil {
					return err
				}
				got = append(got, fmt.Sprint(r.GetId(), r.GetAmount()))
			}
		},
	}, annotated(t, locker))
	stream, err := client.Upload(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for i := range int64(3) {
		if i == 1 {
			<-began // by the first message alone
			held.by(t.Context(), t, client.Try, "a")
		}
		id := string("abc"[i])
		if err := stream.Send(&testpb.Request{Id: id, Amount: i}); err != nil {
			t.Fatal(err)
		}
	}
	reply, err := stream.CloseAndRecv()
	if want := "[a0 b1 c2] [account/a]"; err != nil || reply.GetText() != want {
		t.Errorf("%v, %v; want %s", reply, err, want)
	}
}

func TestStreamKeyedByMetadataWaitsForNoMessage(t *testing.T) {
	locker := testkit.Locker(t)
	client := serve(t, bank{chat: func(s testpb.Bank_ChatServer) error {
		if err := s.Send(&testpb.Reply{Text: core.LeaseFromContext(s.Context()).Key()}); err != nil {
			return err
		}
		for {
			r, err := s.Recv()
			if errors.Is(err, io.EOF) {
				return nil
			} else if err != nil {
				return err
			}
			if err := s.Send(&testpb.Reply{Text: r.GetId()}); err != nil {
				return err
			}
		}
	}}, annotated(t, locker))
	stream, err := client.Chat(tenant(t))
	if err != nil {
		t.Fatal(err)
	}
	if reply, err := stream.Recv(); err != nil || reply.GetText() != "tenant/acme" {
		t.Fatalf("%v, %v", reply, err) // before anything was sent
	}
	for _, id := range []string{"a", "b"} {
		if err := stream.Send(&testpb.Request{Id: id}); err != nil {
			t.Fatal(err)
		}
		if reply, err := stream.Recv(); err != nil || reply.GetText() != id {
			t.Fatalf("%v, %v; want %s", reply, err, id)
		}
	}

	// A second stream waits for the end of the first.
	var wg sync.WaitGroup
	wg.Go(func() {
		second, err := client.Chat(tenant(t))
		if err != nil {
			t.Error(err)
			return
		}
		if _, err := second.Recv(); err != nil {
			t.Error(err)
		}
		_ = second.CloseSend()
		if _, err := second.Recv(); !errors.Is(err, io.EOF) {
			t.Error(err)
		}
	})
	testkit.Queued(t, locker, 1)
	if err := stream.CloseSend(); err != nil {
		t.Fatal(err)
	}
	wg.Wait()
}

func TestKeyFuncOnAStreamReceivesOnlyIfItAsks(t *testing.T) {
	locker := testkit.Locker(t)
	for name, f := range map[string]func(core.Request) (string, error){
		"native": func(req core.Request) (string, error) { return req.Native().(*testpb.Request).GetId(), nil },
		"param":  func(req core.Request) (string, error) { return req.Param("id") },
		"body": func(req core.Request) (string, error) {
			body, err := req.Body(100)
			return strings.TrimSpace(string(body)), err // tag, length and "a"
		},
		"all": func(req core.Request) (string, error) {
			_, err := req.Body(100)
			_ = req.Native()
			v, _ := req.Param("id")
			return v, err
		},
	} {
		guard := core.Serialize(locker, "", core.KeyFunc(func(_ context.Context, req core.Request) ([]string, error) {
			v, err := f(req)
			return []string{v}, err
		}))
		client := serve(t, bank{chat: func(s testpb.Bank_ChatServer) error {
			r, err := s.Recv()
			return errors.Join(err, s.Send(&testpb.Reply{Text: r.GetId() + core.LeaseFromContext(s.Context()).Key()}))
		}}, grpclock.Rules{testpb.Bank_Chat_FullMethodName: guard})
		stream, err := client.Chat(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if err := stream.Send(&testpb.Request{Id: "a"}); err != nil {
			t.Fatal(err)
		}
		if reply, err := stream.Recv(); err != nil || !strings.HasPrefix(reply.GetText(), "a") || !strings.HasSuffix(reply.GetText(), "a") {
			t.Errorf("%s: %v, %v", name, reply, err)
		}
	}
}

func TestStreamWithoutItsFirstMessageIsRefusedInTime(t *testing.T) {
	for name, c := range map[string]struct {
		wait time.Duration
		end  func(testpb.Bank_UploadClient)
		want refusal
	}{
		"ended": {
			time.Minute,
			func(s testpb.Bank_UploadClient) { _ = s.CloseSend() },
			refusal{codes.InvalidArgument, "body-incomplete", false, ""},
		},
		"silent": {
			20 * time.Millisecond,
			func(testpb.Bank_UploadClient) {},
			refusal{codes.DeadlineExceeded, "body-timeout", false, ""},
		},
		"no value": {time.Minute, func(s testpb.Bank_UploadClient) { _ = s.Send(&testpb.Request{}) }, badKey},
	} {
		t.Log(name)
		client := serve(t, never(t), annotated(t, testkit.Locker(t)), grpclock.FirstMessageWait(c.wait))
		stream, err := client.Upload(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		c.end(stream)
		err = stream.RecvMsg(new(testpb.Reply))
		c.want.of(t, err, stream.Trailer())
	}
}

// A KeyFunc may go on without the message; the handler must not receive while a goroutine
// still waits for it.
func TestHandlerCannotReceiveAMessageThatWasGivenUp(t *testing.T) {
	guard := core.Serialize(testkit.Locker(t), "", core.KeyFunc(func(_ context.Context, req core.Request) ([]string, error) {
		if req.Native() != nil {
			t.Error("a message")
		}
		return []string{"k"}, nil
	}))
	got := make(chan error, 2)
	client := serve(t, bank{chat: func(s testpb.Bank_ChatServer) error {
		for range 2 {
			_, err := s.Recv()
			got <- err
		}
		return nil
	}}, grpclock.Rules{testpb.Bank_Chat_FullMethodName: guard}, grpclock.FirstMessageWait(20*time.Millisecond))
	stream, err := client.Chat(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := <-got; status.Code(err) != codes.DeadlineExceeded {
			t.Error(err)
		}
	}
	if _, err := stream.Recv(); !errors.Is(err, io.EOF) {
		t.Error(err)
	}
}

func TestClientThatLeavesBeforeItsFirstMessageIsCanceled(t *testing.T) {
	reasons := make(chan reason.Reason, 1)
	began := make(chan struct{}, 1)
	rules := annotated(t, testkit.Locker(t))
	client := testpb.NewBankClient(dial(t, start(t, never(t), grpc.ChainStreamInterceptor(
		func(srv any, ss grpc.ServerStream, _ *grpc.StreamServerInfo, next grpc.StreamHandler) error {
			began <- struct{}{}
			return next(srv, ss)
		},
		grpclock.Protect(rules, nil, grpclock.Render(func(_ context.Context, _ string, r *core.Refusal) error {
			reasons <- r.Reason
			return nil
		})).Stream()))))
	ctx, cancel := context.WithCancel(t.Context())
	if _, err := client.Upload(ctx); err != nil {
		t.Fatal(err)
	}
	<-began
	cancel()
	if r := <-reasons; r != reason.Canceled {
		t.Errorf("%s; want canceled", r)
	}
}

func TestFirstMessageThatGRPCRefusesKeepsItsStatus(t *testing.T) {
	rules := annotated(t, testkit.Locker(t))
	client := testpb.NewBankClient(dial(t, start(t, never(t), grpc.MaxRecvMsgSize(100),
		grpc.StreamInterceptor(grpclock.Protect(rules, nil).Stream()))))
	stream, err := client.Upload(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	_ = stream.Send(&testpb.Request{Id: strings.Repeat("x", 200)}) // it may have ended already
	if err := stream.RecvMsg(new(testpb.Reply)); status.Code(err) != codes.ResourceExhausted {
		t.Errorf("%v; want RESOURCE_EXHAUSTED", err)
	}
}

func TestStreamThatLostItsLeaseReceivesAndSendsNoMore(t *testing.T) {
	store := memstore.New()
	locker := testkit.LockerOn(t, store)
	use := map[string]func(testpb.Bank_ChatServer) error{
		"receive": func(s testpb.Bank_ChatServer) error { _, err := s.Recv(); return err },
		"send":    func(s testpb.Bank_ChatServer) error { return s.Send(&testpb.Reply{Text: "stale"}) },
	}
	for name, f := range use {
		client := serve(t, bank{chat: func(s testpb.Bank_ChatServer) error {
			if _, err := s.Recv(); err != nil {
				return err
			}
			testkit.Lose(s.Context(), t, store)
			err := f(s)
			if status.Code(err) != codes.Canceled {
				t.Errorf("%s: %v; want what a stream says whose context has ended", name, err)
			}
			return err
		}}, annotated(t, locker))
		stream, err := client.Chat(tenant(t))
		if err != nil {
			t.Fatal(err)
		}
		for range 2 {
			_ = stream.Send(&testpb.Request{Id: "1"}) // the second may come too late
		}
		_, err = stream.Recv()
		lost.of(t, err, stream.Trailer())
	}
}

// oneMessage is a stream without a network.
type oneMessage struct {
	grpc.ServerStream
	ctx context.Context
}

func (s oneMessage) Context() context.Context { return s.ctx }

func (s oneMessage) RecvMsg(m any) error {
	m.(*testpb.Request).Id = "1"
	return nil
}

func TestStreamThatCannotBeKeyedByItsFirstMessageIsAMisconfiguration(t *testing.T) {
	intercept := func(method string, handler grpc.StreamHandler) error {
		rules := grpclock.Rules{method: core.Serialize(testkit.Locker(t), "account/{id}")}
		return grpclock.Protect(rules, nil).Stream()(nil, oneMessage{ctx: t.Context()}, &grpc.StreamServerInfo{FullMethod: method}, handler)
	}
	// The type of the message is not known.
	wrong.of(t, intercept("/a.B/C", func(any, grpc.ServerStream) error { t.Error("the handler ran"); return nil }), nil)
	// The handler receives something else than its proto says.
	err := intercept(testpb.Bank_Chat_FullMethodName, func(_ any, ss grpc.ServerStream) error { return ss.RecvMsg(new(emptypb.Empty)) })
	if status.Code(err) != codes.Internal || !strings.Contains(err.Error(), "interlock.test.v1.Request") {
		t.Error(err)
	}
	// Its target is overwritten, as by any RecvMsg.
	err = intercept(testpb.Bank_Chat_FullMethodName, func(_ any, ss grpc.ServerStream) error {
		m := &testpb.Request{Id: "old", Amount: 7}
		if err := ss.RecvMsg(m); err != nil || m.GetId() != "1" || m.GetAmount() != 0 {
			t.Errorf("%v, %v", m, err)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}
