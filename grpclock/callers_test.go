package grpclock_test

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/memstore"
	"github.com/interlock-go/interlock/grpclock"
	"github.com/interlock-go/interlock/grpclock/internal/testpb"
	"github.com/interlock-go/interlock/internal/adaptertest"
)

// A handler can hold a lock and call a service that locks the same key: it would wait for
// itself.
func TestACallForALockOfItsCallerIsRefusedAtOnce(t *testing.T) {
	store := memstore.New()
	gateway, ledger := adaptertest.LockerOn(t, store), adaptertest.LockerOn(t, store)
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
