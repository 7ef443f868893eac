package main

import (
	"context"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/encoding/gzip"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/interlock-go/interlock/examples/grpc/bankpb"
	"github.com/interlock-go/interlock/examples/internal/servicetest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestService(t *testing.T) {
	conn, err := grpc.NewClient(servicetest.Start(t, run), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for _, c := range []struct {
		token, account, key string
		balance             int64
		code                codes.Code
		replayed            bool
	}{
		{"", "1", "", 0, codes.Unauthenticated, false},
		{"Bearer secret-of-alice", "", "", 0, codes.InvalidArgument, false},
		{"Bearer secret-of-alice", "1", "k", -1, codes.OK, false},
		{"Bearer secret-of-alice", "1", "k", -1, codes.OK, true},
		{"Bearer secret-of-alice", "2", "k", 0, codes.FailedPrecondition, false},
		{"Bearer secret-of-alice", "1", "", -2, codes.OK, false},
	} {
		ctx := metadata.AppendToOutgoingContext(ctx, "authorization", c.token)
		if c.key != "" {
			ctx = metadata.AppendToOutgoingContext(ctx, "idempotency-key", c.key)
		}
		var header metadata.MD
		reply, err := bankpb.NewBankClient(conn).Debit(ctx, &bankpb.DebitRequest{AccountId: c.account, Amount: 1},
			grpc.Header(&header), grpc.UseCompressor(gzip.Name))
		replayed := len(header.Get("idempotent-replayed")) == 1
		if reply.GetBalance() != c.balance || status.Code(err) != c.code || replayed != c.replayed {
			t.Errorf("%+v: %d, %v, replayed %v", c, reply.GetBalance(), err, replayed)
		}
	}
}
