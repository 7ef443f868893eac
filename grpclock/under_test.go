package grpclock_test

import (
	"context"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/idempotency"
	"github.com/interlock-go/interlock/core/memstore"
	"github.com/interlock-go/interlock/grpclock"
	"github.com/interlock-go/interlock/grpclock/internal/testpb"
	"github.com/interlock-go/interlock/internal/testkit"
)

// A method with a rule, and with Under on top, enters the lock twice and does not
// wait for itself.
func TestARuleBesideUnderEntersTheLockAgain(t *testing.T) {
	for name, ruleFirst := range map[string]bool{"rule in front": true, "rule behind": false} {
		t.Run(name, func(t *testing.T) {
			store := memstore.New()
			locker := testkit.LockerOn(t, store)
			engine := testkit.EngineOn(t, store, idempotency.Global(), idempotency.Under(core.Serialize(locker, "account/{id}")))
			rule := grpclock.Protect(grpclock.Rules{debit: core.Serialize(locker, "account/{id}", core.Wait(time.Minute))}, nil).Unary()
			idempotent := grpclock.Protect(nil, grpclock.Methods{debit: engine}).Unary()
			chain := []grpc.UnaryServerInterceptor{idempotent, rule}
			if ruleFirst {
				chain = []grpc.UnaryServerInterceptor{rule, idempotent}
			}
			holds := 0
			chain = append(chain, func(ctx context.Context, _ any, _ *grpc.UnaryServerInfo, _ grpc.UnaryHandler) (any, error) {
				for _, h := range locker.Held() {
					holds = h.Holds
				}
				return &testpb.Reply{Text: core.LeaseFromContext(ctx).Key()}, nil
			})
			client := testpb.NewBankClient(dial(t, start(t, bank{}, grpc.ChainUnaryInterceptor(chain...))))
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			for range 2 { // the second is a replay
				reply, err := client.Debit(metadata.AppendToOutgoingContext(ctx, "idempotency-key", `"`+t.Name()+`"`), &testpb.Request{Id: "42"})
				if err != nil || reply.GetText() != "account/42" {
					t.Fatalf("%v, %v", reply, err)
				}
			}
			if holds != 2 {
				t.Errorf("the lock was entered %d times, want 2", holds)
			}
			if held := locker.Held(); len(held) != 0 {
				t.Errorf("still held: %v", held)
			}
		})
	}
}
