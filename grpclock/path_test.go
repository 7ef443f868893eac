package grpclock_test

import (
	"context"
	"strings"
	"testing"

	"google.golang.org/grpc"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/grpclock"
	"github.com/interlock-go/interlock/grpclock/internal/testpb"
	"github.com/interlock-go/interlock/internal/testkit"
)

// grpc before 1.79.3 routes a call without a slash in front of its path, and tells the
// interceptors that path.
func TestACallWithoutTheSlashOfItsPathKeepsItsRule(t *testing.T) {
	guard := core.Serialize(testkit.Locker(t), "account/{header.x-tenant}")
	engine := testkit.Engine(t)
	path := strings.TrimPrefix(testpb.Bank_Debit_FullMethodName, "/")
	var ran bool
	unary := func(context.Context, any) (any, error) { ran = true; return &testpb.Reply{}, nil }
	for name, call := range map[string]func() error{
		"unary": func() error {
			_, err := grpclock.Protect(grpclock.Rules{testpb.Bank_Debit_FullMethodName: guard}, nil).Unary()(
				t.Context(), &testpb.Request{}, &grpc.UnaryServerInfo{FullMethod: path}, unary)
			return err
		},
		"stream": func() error {
			return grpclock.Protect(grpclock.Rules{testpb.Bank_Debit_FullMethodName: guard}, nil).Stream()(
				nil, oneMessage{ctx: t.Context()}, &grpc.StreamServerInfo{FullMethod: path},
				func(any, grpc.ServerStream) error { ran = true; return nil })
		},
		"idempotent": func() error {
			_, err := grpclock.Protect(nil, grpclock.Methods{testpb.Bank_Debit_FullMethodName: engine}).Unary()(
				t.Context(), &testpb.Request{}, &grpc.UnaryServerInfo{FullMethod: path}, unary)
			return err
		},
	} {
		ran = false
		// The call has neither a tenant nor an idempotency key, so its rule refuses it.
		if err := call(); err == nil || ran {
			t.Errorf("%s: %v, the handler ran: %v; want the refusal of the rule", name, err, ran)
		}
	}
}
