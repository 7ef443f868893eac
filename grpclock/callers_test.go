package grpclock_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/idempotency"
	"github.com/interlock-go/interlock/core/memstore"
	"github.com/interlock-go/interlock/core/reason"
	"github.com/interlock-go/interlock/grpclock"
	"github.com/interlock-go/interlock/grpclock/internal/testpb"
	"github.com/interlock-go/interlock/internal/testkit"
)

// A handler can hold a lock and call a service that locks the same key: it would wait for
// itself.
func TestACallForALockOfItsCallerIsRefusedAtOnce(t *testing.T) {
	store := memstore.New()
	gateway, ledger := testkit.LockerOn(t, store), testkit.LockerOn(t, store)
	rules := annotated(t, ledger, core.Wait(time.Hour))
	var sent atomic.Int32
	counts := func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
		sent.Add(1)
		return next(ctx, req)
	}
	l := start(t, never(t), grpc.ChainUnaryInterceptor(counts, grpclock.Protect(rules, nil).Unary()))
	lease, err := gateway.Lock(t.Context(), "account/1")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = lease.Release(t.Context()) }()
	client := testpb.NewBankClient(dial(t, l, grpc.WithChainUnaryInterceptor(grpclock.UnaryClientRetry())))
	refusal{codes.Aborted, "held-by-caller", false, "-1"}.by(lease.Context(), t, client.Debit, "1")
	if n := sent.Load(); n != 1 {
		t.Errorf("sent %d times, want once", n)
	}
	// Without the metadata the service does not know, and its refusal (Try does not wait) is final.
	client = testpb.NewBankClient(dial(t, l, grpc.WithChainUnaryInterceptor(grpclock.UnaryClientRetry(grpclock.HideHeld()))))
	held.by(lease.Context(), t, client.Try, "1")
	if n := sent.Load(); n != 2 {
		t.Errorf("sent %d times, want once more", n)
	}
	client = testpb.NewBankClient(dial(t, l, grpc.WithChainUnaryInterceptor(
		grpclock.UnaryClientRetry(grpclock.HideHeld(), grpclock.RetryHeld(), grpclock.Tries(2)))))
	held.by(lease.Context(), t, client.Try, "1")
	if n := sent.Load(); n != 4 {
		t.Errorf("sent %d times, want twice more, since it was asked for", n)
	}
}

// A service in between that holds nothing knows the locks of its caller, with an interceptor of
// this module or without, in unary calls and in streams.
func TestAServiceInBetweenPassesTheLocksOfItsCallerOn(t *testing.T) {
	store := memstore.New()
	gateway, ledger := testkit.LockerOn(t, store), testkit.LockerOn(t, store)
	ledgers := grpclock.Protect(annotated(t, ledger, core.Wait(time.Hour)), nil)
	clients := []grpc.DialOption{
		grpc.WithChainUnaryInterceptor(grpclock.UnaryClientRetry()), grpc.WithChainStreamInterceptor(grpclock.StreamClientHeld()),
	}
	last := testpb.NewBankClient(dial(t, start(t, never(t), ledgers.ServerOptions()...), clients...))
	export := func(ctx context.Context, client testpb.BankClient) error {
		s, err := client.Export(ctx, &testpb.Request{Id: "1"})
		if err != nil {
			return err
		}
		_, err = s.Recv()
		return err
	}
	between := bank{
		call: func(ctx context.Context, _ string) (string, error) {
			_, err := last.Debit(ctx, &testpb.Request{Id: "1"})
			return "", err
		},
		export: func(_ *testpb.Request, s testpb.Bank_ExportServer) error { return export(s.Context(), last) },
	}
	lease, err := gateway.Lock(t.Context(), "account/1")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = lease.Release(t.Context()) }()
	ctx, cancel := context.WithTimeout(lease.Context(), testkit.Patience)
	defer cancel()
	for name, opts := range map[string][]grpc.ServerOption{
		"no interceptor":         nil,
		"no rule for the method": grpclock.Protect(nil, nil).ServerOptions(),
	} {
		client := testpb.NewBankClient(dial(t, start(t, between, opts...), clients...))
		_, unary := client.Get(ctx, &testpb.Request{Id: "1"})
		for kind, err := range map[string]error{"unary": unary, "stream": export(ctx, client), "stream, directly": export(ctx, last)} {
			if why := reasonOf(err); why != reason.HeldByCaller || status.Code(err) != codes.Aborted {
				t.Errorf("%s, %s: %v, reason %q; want %q", name, kind, err, why, reason.HeldByCaller)
			}
		}
	}
}

// A service in between gives the refusal an own code, which clients repeat otherwise.
func TestACallIsNotRepeatedWhereAServiceFurtherInWantsTheLockOfItsCaller(t *testing.T) {
	store := memstore.New()
	gateway, ledger := testkit.LockerOn(t, store), testkit.LockerOn(t, store)
	clients := grpc.WithChainUnaryInterceptor(
		grpclock.UnaryClientIdempotencyKey(testpb.Bank_Get_FullMethodName), grpclock.UnaryClientRetry(grpclock.RetryUnanswered()),
	)
	last := testpb.NewBankClient(dial(t, start(t, never(t), grpclock.Protect(annotated(t, ledger), nil).ServerOptions()...), clients))
	var sent atomic.Int32
	between := bank{call: func(ctx context.Context, _ string) (string, error) {
		sent.Add(1)
		_, err := last.Debit(ctx, &testpb.Request{Id: "1"})
		return "", status.Errorf(codes.Unavailable, "the ledger does not answer: %v", err)
	}}
	lease, err := gateway.Lock(t.Context(), "account/1")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = lease.Release(t.Context()) }()
	client := testpb.NewBankClient(dial(t, start(t, between, grpclock.Protect(nil, nil).ServerOptions()...), clients))
	_, err = client.Get(lease.Context(), &testpb.Request{Id: "1"})
	if !errors.Is(err, core.ErrHeldByCaller) || !errors.Is(err, idempotency.ErrOutcomeUnknown) || status.Code(err) != codes.Unavailable || sent.Load() != 1 {
		t.Errorf("%v after %d tries; want an unknown outcome held by the caller, with the code of the service, after one try", err, sent.Load())
	}
}

// A permit of the caller is refused like its lock, and another's is not asked for again.
func TestACallForAPermitOfItsCallerIsRefusedAtOnce(t *testing.T) {
	store := memstore.New()
	gateway, ledger := testkit.LockerOn(t, store), testkit.LockerOn(t, store)
	var sent atomic.Int32
	counts := func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
		sent.Add(1)
		return next(ctx, req)
	}
	rules := grpclock.Rules{
		testpb.Bank_Debit_FullMethodName: core.AtMost(ledger, 1, "account/{id}", core.Wait(time.Hour)),
		testpb.Bank_Try_FullMethodName:   core.AtMost(ledger, 1, "account/{id}", core.Wait(0)),
	}
	l := start(t, never(t), grpc.ChainUnaryInterceptor(counts, grpclock.Protect(rules, nil).Unary()))
	client := testpb.NewBankClient(dial(t, l, grpc.WithChainUnaryInterceptor(grpclock.UnaryClientRetry())))
	lock := func(key string) *core.Lease {
		lease, err := gateway.Lock(t.Context(), key, core.Permits(1))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = lease.Release(context.WithoutCancel(t.Context())) })
		return lease
	}
	ctx := lock("account/1").Context()
	lock("account/2")
	refusal{codes.Aborted, "held-by-caller", false, "-1"}.by(ctx, t, client.Debit, "1")
	_, err := client.Try(ctx, &testpb.Request{Id: "2"})
	if why := reasonOf(err); why != reason.Full || sent.Load() != 2 {
		t.Errorf("%v, reason %q, sent %d times; want %q, each call once", err, why, sent.Load(), reason.Full)
	}
}

// reasonOf returns the reason of a refusal.
func reasonOf(err error) reason.Reason {
	for _, d := range status.Convert(err).Details() {
		if info, ok := d.(*errdetails.ErrorInfo); ok {
			return reason.Reason(info.GetReason())
		}
	}
	return ""
}
