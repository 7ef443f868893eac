package main

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc/metadata"

	"github.com/interlock-go/interlock/examples/payments/paymentspb"
)

func TestMain(m *testing.M) {
	// go-redis asks once a second whether a server is back, and notices only
	// then that its client was closed.
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction("github.com/redis/go-redis/v9/internal/pool.(*ConnPool).tryDial"))
}

// patience bounds a wait for an event that has to come.
const patience = time.Minute

// served is a bank in this process, on its own server, with all its front ends.
type served struct {
	*service
	t       *testing.T
	ctx     context.Context
	clients []client // of all, in the order of frontends
	urls    map[string]string
}

// serveTest serves an empty bank. change may alter the service beforehand.
func serveTest(t *testing.T, change func(*config), alter func(*service)) *served {
	t.Helper()
	cfg := config{
		addr: anyPort, gin: anyPort, echo: anyPort, grpc: anyPort,
		wait: patience, ttl: patience, lease: patience, retention: time.Hour, faults: true,
	}
	change(&cfg)
	log := slog.New(slog.NewTextHandler(t.Output(), nil))
	tel, err := newTelemetry(cfg, log, t.Output())
	if err != nil {
		t.Fatal(err)
	}
	s, err := open(t.Context(), cfg, tel, nil, log)
	if err != nil {
		t.Fatal(err)
	}
	alter(s)
	fronts, err := s.listen(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	start(fronts)
	b := &served{service: s, t: t, ctx: t.Context(), urls: make(map[string]string)}
	t.Cleanup(func() {
		for _, c := range b.clients {
			_ = c.hangUp()
		}
		for _, end := range []func(context.Context) error{func(ctx context.Context) error { return drain(ctx, fronts) }, s.close} {
			if err := bounded(t.Context(), patience, end); err != nil {
				t.Error(err)
			}
		}
	})
	for _, f := range fronts {
		c, err := dial(f.name, f.addr.String(), false, nil)
		if err != nil {
			t.Fatal(err)
		}
		b.clients, b.urls[f.name] = append(b.clients, c), "http://"+f.addr.String()
	}
	return b
}

func asIs(*config)   {}
func ready(*service) {}

// put opens accounts with 100 each.
func (b *served) put(ids ...string) {
	b.t.Helper()
	for i, id := range ids {
		b.want("", b.clients[i%len(b.clients)], &paymentspb.PutAccountRequest{Account: id, Balance: 100})
	}
}

// do sends any request.
func do(ctx context.Context, c client, request any) (answer any, err error) {
	err = again(ctx, func(ctx context.Context) (err error) {
		switch r := request.(type) {
		case *paymentspb.PutAccountRequest:
			answer, err = c.PutAccount(ctx, r)
		case *paymentspb.GetAccountRequest:
			answer, err = c.GetAccount(ctx, r)
		case *paymentspb.DebitRequest:
			answer, err = c.Debit(ctx, r)
		case *paymentspb.TransferRequest:
			answer, err = c.Transfer(ctx, r)
		case *paymentspb.ReportRequest:
			answer, err = c.Report(ctx, r)
		case *paymentspb.RateRequest:
			answer, err = c.Rate(ctx, r)
		case *paymentspb.PayRequest:
			answer, err = c.Pay(ctx, r)
		}
		return err
	})
	return answer, err
}

// want sends a request, which must be answered by a reason, or carried out if it is empty.
func (b *served) want(reason string, c client, request any) any {
	b.t.Helper()
	answer, err := do(b.ctx, c, request)
	if got := reasonOf(err); got != reason {
		b.t.Errorf("%T %v through %s: %q, want %q (%v)", request, request, c.frontend, got, reason, err)
	}
	return answer
}

func (b *served) wantBalance(id string, want int64) {
	b.t.Helper()
	for _, c := range b.clients {
		a := b.want("", c, &paymentspb.GetAccountRequest{Account: id}).(*paymentspb.Account)
		if a.GetAccount() != id || a.GetBalance() != want {
			b.t.Errorf("%v through %s, want %s with %d", a, c.frontend, id, want)
		}
	}
}

// keyed is the context of a payment with a key.
func keyed(ctx context.Context, key, behaviour string) context.Context {
	return metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer carol", "idempotency-key", key, "bank-behaviour", behaviour)
}

// later makes a request from a new goroutine.
func later(ctx context.Context, c client, request any) <-chan error {
	done := make(chan error, 1)
	go func() {
		_, err := do(ctx, c, request)
		done <- err
	}()
	return done
}

// eventually waits until ok returns nil.
func eventually(t *testing.T, ok func() error) {
	t.Helper()
	for end := time.Now().Add(patience); ; time.Sleep(time.Millisecond) {
		err := ok()
		if err == nil {
			return
		}
		if time.Now().After(end) {
			t.Fatal(err)
		}
	}
}
