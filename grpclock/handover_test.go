package grpclock_test

import (
	"context"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/interlock-go/interlock/core/idempotency"
	"github.com/interlock-go/interlock/core/idempotency/endpoint"
	"github.com/interlock-go/interlock/grpclock"
	"github.com/interlock-go/interlock/grpclock/internal/testpb"
	"github.com/interlock-go/interlock/internal/testkit"
)

func TestAJobAnswersACallThatWasHandedOver(t *testing.T) {
	engine := testkit.Engine(t)
	var ticket idempotency.Ticket
	client := testpb.NewBankClient(dial(t, start(t, bank{call: func(ctx context.Context, _ string) (string, error) {
		var err error
		ticket, err = idempotency.HandOver(ctx, time.Minute)
		return "accepted", err
	}}, grpc.UnaryInterceptor(grpclock.Protect(nil, grpclock.Methods{debit: engine}).Unary()))))
	call := func(key, want, interim string) {
		t.Helper()
		var header metadata.MD
		ctx := metadata.AppendToOutgoingContext(t.Context(), "idempotency-key", key)
		reply, err := client.Debit(ctx, &testpb.Request{Id: "42"}, grpc.Header(&header))
		got := reply.GetText()
		if err != nil {
			got = status.Code(err).String()
		}
		if marks := header.Get(idempotency.InterimHeader); got != want || len(marks) > 0 != (interim != "") {
			t.Errorf("%q, with the marks %v; want %q, with %q", got, marks, want, interim)
		}
	}
	for key, c := range map[string]struct {
		code   codes.Code
		answer proto.Message
		want   string
	}{
		"ok":      {codes.OK, &testpb.Reply{Text: "paid"}, "paid"},
		"refused": {codes.PermissionDenied, status.New(codes.PermissionDenied, "closed").Proto(), "PermissionDenied"},
	} {
		call(key, "accepted", "")
		call(key, "accepted", "true")
		err := engine.TakeOver(t.Context(), ticket, func(context.Context) (endpoint.Response, error) {
			body, err := proto.Marshal(c.answer)
			return endpoint.Response{Status: int(c.code), Body: body}, err
		})
		if err != nil {
			t.Errorf("TakeOver: %v", err)
		}
		call(key, c.want, "")
	}
}
