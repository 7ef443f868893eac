package grpclock_test

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/memstore"
	"github.com/interlock-go/interlock/grpclock"
	"github.com/interlock-go/interlock/grpclock/internal/testpb"
	"github.com/interlock-go/interlock/internal/testkit"
)

// A service that owns a resource refuses what an outdated holder sends, and no try changes that.
func TestTheTokensOfTheCallerAreSentAndAnOutdatedOneIsNotTriedAgain(t *testing.T) {
	testkit.LogTo(t)
	gateway := testkit.LockerOn(t, memstore.New())
	var latest, sent atomic.Int64
	rule := core.Fenced("account/{id}", func(_ context.Context, fences []core.Fence) error {
		if fences[0].Token < latest.Load() {
			return core.ErrLost
		}
		return nil
	})
	counts := func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
		sent.Add(1)
		return next(ctx, req)
	}
	b := bank{call: func(ctx context.Context, _ string) (string, error) { return fmt.Sprint(core.Fences(ctx)), nil }}
	l := start(t, b, grpc.ChainUnaryInterceptor(counts, grpclock.Protect(grpclock.Rules{testpb.Bank_Debit_FullMethodName: rule}, nil).Unary()))
	client := func(opts ...grpclock.RetryOption) testpb.BankClient {
		return testpb.NewBankClient(dial(t, l, grpc.WithChainUnaryInterceptor(
			grpclock.UnaryClientIdempotencyKey(), grpclock.UnaryClientRetry(append(opts, grpclock.RetryUnanswered())...))))
	}
	lease, err := gateway.Lock(t.Context(), "account/1")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = lease.Release(t.Context()) }()
	want := fmt.Sprintf("[{account/1 %d}]", lease.Token())
	reply, err := client(grpclock.SendFences()).Debit(lease.Context(), &testpb.Request{Id: "1"})
	if reply.GetText() != want || err != nil {
		t.Errorf("%q, %v; want %q", reply.GetText(), err, want)
	}
	one := metadata.AppendToOutgoingContext(lease.Context(), core.FencesHeader, "account/1=1")
	latest.Store(lease.Token())
	stale := refusal{codes.FailedPrecondition, "stale-token", false, "-1"}
	missing := refusal{codes.FailedPrecondition, "token-missing", false, ""}
	sent.Store(0)
	missing.by(lease.Context(), t, client().Debit, "1")
	stale.by(one, t, client(grpclock.SendFences()).Debit, "1") // the caller's own metadata counts
	latest.Add(1)
	stale.by(lease.Context(), t, client(grpclock.SendFences()).Debit, "1")
	missing.by(lease.Context(), t, client(grpclock.SendFences()).Debit, "2")
	if n := sent.Load(); n != 4 {
		t.Errorf("four calls were sent %d times; want each once", n)
	}
}

func TestACallUnderMoreLocksThanFitIsNotSent(t *testing.T) {
	gateway := testkit.LockerOn(t, memstore.New())
	var keys []string
	for i := range 200 {
		keys = append(keys, fmt.Sprintf("account/%d", i))
	}
	lease, err := gateway.LockAll(t.Context(), keys)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = lease.Release(t.Context()) }()
	client := testpb.NewBankClient(dial(t, start(t, never(t)), grpc.WithUnaryInterceptor(grpclock.UnaryClientRetry(grpclock.SendFences()))))
	if _, err := client.Debit(lease.Context(), &testpb.Request{Id: "1"}); status.Code(err) != codes.Internal {
		t.Errorf("%v; want %v", err, codes.Internal)
	}
}
