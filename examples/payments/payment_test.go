package main

import (
	"context"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	"github.com/interlock-go/interlock/examples/payments/paymentspb"
)

func pays(account string, amount int64) *paymentspb.PayRequest {
	return &paymentspb.PayRequest{Account: account, Amount: amount}
}

// pay makes a payment of 10 of alice, and returns its id and whether it was a replay.
func pay(ctx context.Context, c client, key, behaviour string) (id string, replayed bool, err error) {
	var header metadata.MD
	p, err := c.Pay(keyed(ctx, key, behaviour), pays("alice", 10), grpc.Header(&header))
	return p.GetPaymentId(), len(header.Get("idempotent-replayed")) > 0, err
}

// A key is one key through all HTTP front ends, and refused over gRPC. The key of another
// principal is another key.
func TestWhoseKeyItIs(t *testing.T) {
	t.Parallel()
	b := serveTest(t, asIs, ready)
	b.put("alice", "bob")
	made, _, err := pay(t.Context(), b.clients[0], "k", "")
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range b.clients {
		switch id, replayed, err := pay(t.Context(), c, "k", ""); {
		case c.frontend == "grpc" && reasonOf(err) != "idempotency-key-reused":
			t.Errorf("over gRPC: %v", err)
		case c.frontend != "grpc" && (err != nil || !replayed || id != made):
			t.Errorf("%s: %q, %t, %v, want a replay of %q", c.frontend, id, replayed, err, made)
		}
		if _, err := c.Pay(keyed(t.Context(), "k", ""), pays("bob", 10)); reasonOf(err) != "idempotency-key-reused" {
			t.Errorf("another payment with the key: %v", err)
		}
	}
	dave := metadata.AppendToOutgoingContext(t.Context(), "authorization", "Bearer dave", "idempotency-key", "k")
	if p, err := b.clients[1].Pay(dave, pays("bob", 10)); err != nil || p.GetBalance() != 90 {
		t.Errorf("another principal: %v, %v", p, err)
	}
	b.wantBalance("alice", 90)
}
