package grpclock_test

import (
	"context"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/interlock-go/interlock/grpclock"
	"github.com/interlock-go/interlock/grpclock/internal/testpb"
	"github.com/interlock-go/interlock/internal/testkit"
)

func TestAnotherAuthorityIsAnotherRequest(t *testing.T) {
	intercept := grpclock.Protect(nil, grpclock.Methods{testpb.Bank_Try_FullMethodName: testkit.Engine(t)}).Unary()
	info := &grpc.UnaryServerInfo{FullMethod: testpb.Bank_Try_FullMethodName}
	runs := 0
	pay := func(authority string) error {
		ctx := metadata.NewIncomingContext(t.Context(), metadata.Pairs(":authority", authority, grpclock.IdempotencyKey, "k"))
		ctx = grpc.NewContextWithServerTransportStream(ctx, noStream{})
		_, err := intercept(ctx, &testpb.Request{Id: "1"}, info, func(context.Context, any) (any, error) {
			runs++
			return &testpb.Reply{Text: authority}, nil
		})
		return err
	}
	for authority, want := range map[string]codes.Code{"eu.bank.example": codes.OK, "us.bank.example": codes.FailedPrecondition} {
		if err := pay("eu.bank.example"); err != nil {
			t.Fatal(err)
		}
		if err := pay(authority); status.Code(err) != want {
			t.Errorf("%s: %v; want %v", authority, err, want)
		}
	}
	if runs != 1 {
		t.Errorf("%d runs", runs)
	}
}

// noStream is of a call without a connection.
type noStream struct{}

func (noStream) Method() string               { return testpb.Bank_Try_FullMethodName }
func (noStream) SetHeader(metadata.MD) error  { return nil }
func (noStream) SendHeader(metadata.MD) error { return nil }
func (noStream) SetTrailer(metadata.MD) error { return nil }
