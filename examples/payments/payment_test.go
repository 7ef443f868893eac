package main

import (
	"context"
	"crypto/rand"
	"errors"
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

// What becomes of a payment that is sent twice: the first time with a behaviour
// of the bank, the second time without, as a client would.
func TestAPaymentSentTwiceThroughEachFrontEnd(t *testing.T) {
	t.Parallel()
	b := serveTest(t, asIs, ready)
	for _, c := range []struct {
		behaviour     string
		first, second bool // it was made; it is replayed
		left          int64
	}{
		{"", true, true, 90},
		{"delay=1ms,effect", true, true, 90},
		{"status=402", false, true, 100},
		{"status=500", false, false, 90},
		{"status=500, effect", false, true, 90},
	} {
		for _, client := range b.clients {
			b.put("alice")
			key := rand.Text()
			id, replayed, err := pay(t.Context(), client, key, c.behaviour)
			if (err == nil) != c.first || (id != "") != c.first || replayed || err != nil && reasonOf(err) != "simulated" {
				t.Errorf("%q through %s: %q, %t, %v", c.behaviour, client.frontend, id, replayed, err)
			}
			again, replayed, err := pay(t.Context(), client, key, "")
			switch {
			case c.first && (err != nil || !replayed || again != id):
				t.Errorf("%q through %s, again: %q, %t, %v; want %q", c.behaviour, client.frontend, again, replayed, err, id)
			case !c.first && c.second && reasonOf(err) != "simulated":
				t.Errorf("%q through %s, again: %v, want the stored failure", c.behaviour, client.frontend, err)
			case !c.first && !c.second && (err != nil || replayed):
				t.Errorf("%q through %s, again: %t, %v, want a new payment", c.behaviour, client.frontend, replayed, err)
			}
			b.wantBalance("alice", c.left)
		}
	}
	for _, words := range []string{"slow", "delay", "delay=1", "status=x", "effect;status=500"} {
		if _, err := parseBehaviour([]string{words}); err == nil {
			t.Errorf("%q was accepted", words)
		}
	}
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

// The client of a payment goes away while the bank works on it: the payment is
// made all the same, and is what the client is told when it comes again. Until
// then the key is in flight.
func TestAClientThatLeavesAndComesAgain(t *testing.T) {
	t.Parallel()
	begun, proceed := make(chan struct{}), make(chan struct{})
	b := serveTest(t, asIs, slow(begun, proceed))
	for _, c := range b.clients {
		b.put("alice")
		ctx, leave := context.WithCancel(t.Context())
		first := make(chan error, 1)
		key := "k-" + c.frontend
		go func() {
			_, _, err := pay(ctx, c, key, "")
			first <- err
		}()
		<-begun
		if _, _, err := pay(t.Context(), c, key, ""); reasonOf(err) != "idempotency-in-flight" {
			t.Errorf("%s: meanwhile: %v", c.frontend, err)
		}
		leave()
		if err := <-first; err == nil {
			t.Errorf("%s: the client that left was answered", c.frontend)
		}
		proceed <- struct{}{}
		eventually(t, func() error {
			_, replayed, err := pay(t.Context(), c, key, "")
			if err == nil && !replayed {
				err = errors.New("it was made once more")
			}
			return err
		})
		b.wantBalance("alice", 90)
	}
}
