package main

import (
	"context"
	"net/http"
	"testing"
	"time"

	"connectrpc.com/connect/v2"
	"connectrpc.com/connect/v2/connecthttp"
	"go.uber.org/goleak"

	"github.com/interlock-go/interlock/connectlock"
	"github.com/interlock-go/interlock/examples/connect/bankpbconnect"
	"github.com/interlock-go/interlock/examples/grpc/bankpb"
	"github.com/interlock-go/interlock/examples/internal/servicetest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// A key is the same to the clients of all protocols.
func TestService(t *testing.T) {
	addr := servicetest.Start(t, run)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	dial := func(options ...connecthttp.Option) bankpbconnect.BankClient {
		protocols := new(http.Protocols)
		protocols.SetUnencryptedHTTP2(true)
		transport := &http.Transport{Protocols: protocols}
		t.Cleanup(transport.CloseIdleConnections)
		return bankpbconnect.NewBankClient(connect.NewClient(
			connecthttp.NewTransport(&http.Client{Transport: transport}, "http://"+addr, options...),
			connectlock.UnaryClientIdempotencyKey(), connectlock.UnaryClientRetry()))
	}
	clients := map[string]bankpbconnect.BankClient{
		"connect": dial(), "JSON": dial(connecthttp.WithProtoJSON()), "gRPC": dial(connecthttp.WithGRPC()), "gRPC-Web": dial(connecthttp.WithGRPCWeb()),
	}
	for _, c := range []struct {
		protocol, token, account, key string
		balance                       int64
		code                          connect.Code
		replayed                      bool
	}{
		{"connect", "", "1", "", 0, connect.CodeUnauthenticated, false},
		{"connect", "Bearer secret-of-alice", "", "", 0, connect.CodeInvalidArgument, false},
		{"connect", "Bearer secret-of-alice", "1", "k", -1, 0, false},
		{"JSON", "Bearer secret-of-alice", "1", "k", -1, 0, true},
		{"gRPC", "Bearer secret-of-alice", "1", "k", -1, 0, true},
		{"gRPC-Web", "Bearer secret-of-alice", "1", "k", -1, 0, true},
		{"gRPC", "Bearer secret-of-alice", "2", "k", 0, connect.CodeFailedPrecondition, false},
		{"gRPC-Web", "Bearer secret-of-bob", "1", "k", -2, 0, false},
		{"JSON", "Bearer secret-of-alice", "1", "", -3, 0, false},
	} {
		ctx, info := connect.NewClientContext(ctx)
		info.RequestHeader().Set("Authorization", c.token)
		if c.key != "" {
			info.RequestHeader().Set("Idempotency-Key", c.key)
		}
		reply, err := clients[c.protocol].Debit(ctx, &bankpb.DebitRequest{AccountId: c.account, Amount: 1})
		replayed := info.ResponseHeader().Has("Idempotent-Replayed")
		if reply.GetBalance() != c.balance || (err == nil) != (c.code == 0) || err != nil && connect.CodeOf(err) != c.code || replayed != c.replayed {
			t.Errorf("%+v: %d, %v, replayed %v", c, reply.GetBalance(), err, replayed)
		}
	}
}
