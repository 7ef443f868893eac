package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/interlock-go/interlock/internal/redistest"
)

// wantBalance says what is left of the 100 that put opened an account with.
func (b *served) wantBalance(t *testing.T, id string, want int64) {
	t.Helper()
	if a := b.clients[0].get(t.Context(), id); !a.done() || a.account.Balance != want {
		t.Errorf("%s: %+v, want balance %d", id, a, want)
	}
}

func order10(account, key string) payment {
	return payment{payer: "carol", key: key, account: account, amount: 10}
}

// wantPaid is the answer to a payment of 10 out of 100.
func wantPaid(t *testing.T, a reply, account string) {
	t.Helper()
	if !a.done() || a.payment == "" || a.account.ID != account || a.amount != 10 || a.account.Balance != 90 {
		t.Errorf("answered %+v, want the payment", a)
	}
}

// What becomes of a payment that is sent twice: the first time with a behaviour
// of the bank, the second time without, as a client would.
func TestAPaymentSentTwiceThroughEachFrontEnd(t *testing.T) {
	b := serveTest(t, config{wait: time.Minute, faults: true}, nil)
	for _, c := range []struct {
		behaviour string
		first     string // the reason, empty for a payment that was made
		again     string
		replayed  bool
		left      int64
	}{
		{"", "", "", true, 90},
		{"delay=1ms", "", "", true, 90},
		{"effect", "", "", true, 90},
		{"status=402", "simulated", "simulated", true, 100},
		{"status=500", "simulated", "", false, 90},
		{"status=429", "simulated", "", false, 90},
		{"panic", "internal", "", false, 90},
		{"effect,status=402", "simulated", "simulated", true, 90},
		{"status=500, effect", "simulated", "simulated", true, 90},
		{"effect,panic", "internal", "internal", true, 90},
		{"large=4KiB", "", "", true, 90},
		{"large=2MiB", "", "idempotency-response-unavailable", false, 90},
		{"cookie", "", "", true, 90},
	} {
		for _, client := range b.clients {
			t.Run(c.behaviour+" through "+client.frontend(), func(t *testing.T) {
				b.put(t, "alice")
				p := order10("alice", rand.Text())
				p.behaviour = c.behaviour
				first := client.pay(t.Context(), p)
				if c.first == "" {
					wantPaid(t, first, "alice")
				} else if first.done() || client.frontend() != "grpc" && first.reason != c.first {
					t.Errorf("first: %+v, want %q", first, c.first)
				}
				if first.replayed {
					t.Error("the first is a replay")
				}
				if want := strings.Contains(c.behaviour, "cookie"); (first.cookies == 1) != want {
					t.Errorf("%d cookies", first.cookies)
				}

				p.behaviour = ""
				again := client.pay(t.Context(), p)
				b.wantBalance(t, "alice", c.left)
				switch {
				case again.replayed != c.replayed:
					t.Errorf("again: %+v, want replayed %v", again, c.replayed)
				case c.again != "":
					// A panic has no problem of the bank's own, but its status.
					if again.done() || c.again != "internal" && again.reason != c.again {
						t.Errorf("again: %+v, want %q", again, c.again)
					}
				case !again.done() || again.cookies != 0:
					t.Errorf("again: %+v", again)
				case c.replayed && (again.payment != first.payment || again.account != first.account || again.padding != first.padding):
					t.Errorf("again: %+v, want %+v", again, first)
				}
			})
		}
	}
}

func TestPaymentsThatAreRefused(t *testing.T) {
	b := serveTest(t, config{wait: time.Minute, faults: true}, nil)
	b.put(t, "alice")
	for i, c := range []struct {
		payment
		reason string
		status string // of HTTP
		code   codes.Code
	}{
		{payment{key: "k", account: "alice", amount: 1}, "unauthenticated", "401", codes.Unauthenticated},
		{payment{payer: "carol", account: "alice", amount: 1}, "idempotency-key-missing", "400", codes.InvalidArgument},
		{payment{payer: "carol", key: "a b", account: "alice", amount: 1}, "idempotency-key-malformed", "400", codes.InvalidArgument},
		{order10("", "k"), "invalid-request", "400", codes.InvalidArgument},
		{order10("a/b", "k"), "invalid-request", "400", codes.InvalidArgument},
		{payment{payer: "carol", key: "k", account: "alice"}, "invalid-request", "400", codes.InvalidArgument},
		{payment{"carol", "k", "alice", 1, "slow"}, "invalid-request", "400", codes.InvalidArgument},
		{order10("nobody", "unknown"), "unknown-account", "404", codes.NotFound},
		{payment{"carol", "much", "alice", 101, ""}, "insufficient-funds", "402", codes.FailedPrecondition},
	} {
		for _, client := range b.clients {
			p := c.payment
			if i > 6 { // the bank's own refusals are stored, so each front end has its key
				p.key += client.frontend()
			}
			a := client.pay(t.Context(), p)
			ok := a.err != nil && strings.HasPrefix(a.err.Error(), c.status)
			if client.frontend() == "grpc" {
				ok = status.Code(a.err) == c.code
			}
			if a.reason != c.reason || !ok {
				t.Errorf("%+v through %s: %v, want %s", p, client.frontend(), a.failure(), c.reason)
			}
		}
	}
	// None of them has used up the key.
	wantPaid(t, b.clients[0].pay(t.Context(), order10("alice", "k")), "alice")
}

func TestBodiesThatAreNoPayment(t *testing.T) {
	b := serveTest(t, config{wait: time.Minute}, nil)
	b.put(t, "alice")
	for body, want := range map[string]int{
		"":                                  400,
		"{":                                 400,
		`[]`:                                400,
		`"alice"`:                           400,
		`{"account":"alice","amount":1} {}`: 400,
		`{"account":"alice","amount":"1"}`:  400,
		`{"account":"alice","amount":1.5}`:  400,
		`{"account":"alice","amount":99999999999999999999}`:             400,
		`{"account":1,"amount":1}`:                                      400,
		`{"account":"alice","amount":-1}`:                               400,
		`{"account":"alice"}`:                                           400,
		`{"account":"alice","amount":1}` + strings.Repeat(" ", maxBody): 413,
		`{"amount":10,"account":"alice"}`:                               201,
	} {
		for front, url := range b.urls {
			b.put(t, "alice")
			req, err := http.NewRequestWithContext(t.Context(), "POST", url+"/payments", strings.NewReader(body))
			if err != nil {
				t.Fatal(err)
			}
			req.Header.Set("Authorization", "bearer carol")
			req.Header.Set("Idempotency-Key", `"k-`+front+`"`)
			a, err := send(req)
			if err != nil || a.status != want {
				t.Errorf("%s: %.60q: %d %s, %v, want %d", front, body, a.status, a.raw, err, want)
			}
			if want == 201 && (a.body["payment_id"] == "" || a.body["account"] != "alice" || a.body["amount"] != 10. || a.body["balance"] != 90. || len(a.body) != 4) {
				t.Errorf("%s: %s", front, a.raw)
			}
			if want != 201 && a.header.Get("Content-Type") != "application/problem+json" {
				t.Errorf("%s: %s", front, a.header.Get("Content-Type"))
			}
		}
	}
}

func TestWithoutFaultsNobodySteersTheBank(t *testing.T) {
	b := serveTest(t, config{wait: time.Minute}, nil)
	for _, c := range b.clients {
		b.put(t, "alice")
		p := order10("alice", c.frontend())
		p.behaviour = "status=500,nonsense"
		wantPaid(t, c.pay(t.Context(), p), "alice")
	}
}

func TestWordsForTheBank(t *testing.T) {
	b, err := parseBehaviour([]string{"delay=800ms, effect", "status=402,panic,large=2MiB,cookie"})
	want := behaviour{delay: 800 * time.Millisecond, effect: true, status: 402, panic: true, large: 2 << 20, cookie: true}
	if err != nil || b != want {
		t.Errorf("%+v, %v, want %+v", b, err, want)
	}
	for _, words := range []string{
		"slow", "effect=1", "delay", "delay=", "delay=-1s", "delay=1", "status=200", "status=x", "panic=now",
		"large=2", "large=2GiB", "large=-1B", "large=65MiB", "effect,", "cookie;panic", "PANIC",
	} {
		if b, err := parseBehaviour([]string{words}); err == nil {
			t.Errorf("%q: accepted as %+v", words, b)
		}
	}
}

// One principal's key is one key through all HTTP front ends, and refused over
// gRPC; another principal's is another key.
func TestWhoseKeyItIs(t *testing.T) {
	b := serveTest(t, config{wait: time.Minute}, nil)
	for _, first := range b.clients {
		b.put(t, "alice", "bob")
		mine := order10("alice", "k-"+first.frontend())
		made := first.pay(t.Context(), mine)
		wantPaid(t, made, "alice")
		other := mine
		other.account = "bob"
		theirs := order10("bob", mine.key)
		theirs.payer = "dave"
		wantPaid(t, first.pay(t.Context(), theirs), "bob")
		for _, second := range b.clients {
			again := second.pay(t.Context(), mine)
			if (first.frontend() == "grpc") == (second.frontend() == "grpc") {
				if !again.replayed || again.payment != made.payment {
					t.Errorf("%s, then %s: %+v, want %+v", first.frontend(), second.frontend(), again, made)
				}
			} else if again.reason != "idempotency-key-reused" {
				t.Errorf("%s, then %s: %+v", first.frontend(), second.frontend(), again)
			}
			if a := second.pay(t.Context(), other); a.reason != "idempotency-key-reused" {
				t.Errorf("another payment with the key: %+v", a)
			}
		}
		b.wantBalance(t, "alice", 90)
		b.wantBalance(t, "bob", 90)
	}
}

// The client of a payment goes away while the bank works on it: the payment is
// made all the same, and is what the client is told when it comes again. Until
// then the key is in flight, for every payment that has it.
func TestAClientThatLeavesAndComesAgain(t *testing.T) {
	begun, proceed := make(chan struct{}), make(chan struct{})
	b := serveTest(t, config{wait: time.Minute}, slow(begun, proceed))
	for _, c := range b.clients {
		b.put(t, "alice")
		p := order10("alice", "k-"+c.frontend())
		ctx, leave := context.WithCancel(t.Context())
		first := make(chan reply, 1)
		go func() { first <- c.pay(ctx, p) }()
		<-begun
		if a := c.pay(t.Context(), p); a.reason != "idempotency-in-flight" {
			t.Errorf("%s: meanwhile: %+v", c.frontend(), a)
		}
		other := p
		other.amount++
		if a := c.pay(t.Context(), other); a.reason != "idempotency-key-reused" {
			t.Errorf("%s: meanwhile with another amount: %+v", c.frontend(), a)
		}
		leave()
		if a := <-first; a.err == nil {
			t.Errorf("%s: who left was answered: %+v", c.frontend(), a)
		}
		proceed <- struct{}{}
		redistest.Eventually(t, time.Minute, func(ctx context.Context) error {
			a := c.pay(ctx, p)
			if !a.replayed || a.account.Balance != 90 {
				return fmt.Errorf("%s: %+v", c.frontend(), a)
			}
			return nil
		})
		b.wantBalance(t, "alice", 90)
	}
}

func TestAfterItsRetentionAKeyIsNew(t *testing.T) {
	b := serveTest(t, config{wait: time.Minute, retention: 2 * time.Second, lease: 2 * time.Second}, nil)
	orders, first := make(map[string]payment), make(map[string]reply)
	for _, c := range b.clients {
		front := c.frontend()
		for range 5 { // its lease may end while a busy machine works on it
			b.put(t, front)
			orders[front] = order10(front, rand.Text())
			if first[front] = c.pay(t.Context(), orders[front]); first[front].done() {
				break
			}
		}
		wantPaid(t, first[front], front)
	}
	for _, c := range b.clients { // their keys are forgotten at about the same time
		redistest.Eventually(t, time.Minute, func(ctx context.Context) error {
			switch a := c.pay(ctx, orders[c.frontend()]); {
			case !a.done() || a.payment == first[c.frontend()].payment:
				return errors.New("it is still known")
			case a.replayed || a.account.Balance != 80:
				t.Errorf("%s: %+v", c.frontend(), a)
			}
			return nil
		})
	}
}
