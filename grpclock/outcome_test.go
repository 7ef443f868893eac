package grpclock_test

import (
	"context"
	"errors"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"

	"github.com/interlock-go/interlock/core/idempotency"
	"github.com/interlock-go/interlock/core/memstore"
	"github.com/interlock-go/interlock/grpclock"
	"github.com/interlock-go/interlock/grpclock/internal/testpb"
)

const try = "/interlock.test.v1.Bank/Try"

// idempotentBank is a bank with the idempotent method Try.
func idempotentBank(t *testing.T, call func(ctx context.Context, id string) (string, error), front ...grpc.UnaryServerInterceptor) *bufconn.Listener {
	t.Helper()
	engine, err := idempotency.New(memstore.New(), idempotency.Global())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = engine.Close(context.Background()) })
	return start(t, bank{call: call}, grpc.ChainUnaryInterceptor(append(front, grpclock.Protect(nil, grpclock.Methods{try: engine}).Unary())...))
}

// unknownKey returns the key of a call that may have been carried out.
func unknownKey(t *testing.T, what string, err error) string {
	t.Helper()
	var failed *idempotency.RequestError
	if !errors.As(err, &failed) || !errors.Is(err, idempotency.ErrOutcomeUnknown) || failed.Key == "" || failed.RetryAfter <= 0 {
		t.Errorf("%s: %v; want an unknown outcome with the key, and when to ask again", what, err)
		return ""
	}
	return failed.Key
}

// The caller that calls again needs the key of the call without an answer.
func TestACallWhoseAnswerIsLostKeepsItsKey(t *testing.T) {
	var paid, lost atomic.Int32
	// It loses the first answer of each two.
	loses := func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
		reply, err := next(ctx, req)
		if lost.Add(1)%2 == 1 {
			return nil, status.Error(codes.Unavailable, "the proxy has no answer")
		}
		return reply, err
	}
	l := idempotentBank(t, func(context.Context, string) (string, error) { paid.Add(1); return "paid", nil }, loses)
	for name, opt := range map[string]grpc.DialOption{
		"keys alone": grpc.WithChainUnaryInterceptor(grpclock.UnaryClientIdempotencyKey()),
		"retry":      grpc.WithChainUnaryInterceptor(grpclock.UnaryClientIdempotencyKey(), grpclock.UnaryClientRetry()),
	} {
		paid.Store(0)
		lost.Store(0)
		client := testpb.NewBankClient(dial(t, l, opt))
		_, err := client.Try(t.Context(), &testpb.Request{Id: "1"})
		key := unknownKey(t, name, err)
		if status.Code(err) != codes.Unavailable {
			t.Errorf("%s: code %v; want the code of the server", name, status.Code(err))
		}
		reply, err := client.Try(idempotency.WithKey(t.Context(), key), &testpb.Request{Id: "1"})
		if err != nil || reply.GetText() != "paid" || paid.Load() != 1 {
			t.Errorf("%s: %v, %v, paid %d times; want one payment", name, reply, err, paid.Load())
		}
	}
	paid.Store(0)
	lost.Store(0)
	client := testpb.NewBankClient(dial(t, l, grpc.WithChainUnaryInterceptor(
		grpclock.UnaryClientIdempotencyKey(), grpclock.UnaryClientRetry(grpclock.RetryUnanswered()))))
	if reply, err := client.Try(t.Context(), &testpb.Request{Id: "1"}); err != nil || reply.GetText() != "paid" || paid.Load() != 1 {
		t.Errorf("RetryUnanswered: %v, %v, paid %d times; want one payment, answered", reply, err, paid.Load())
	}
}

func TestAnErrorThatSettlesACallStaysAsItIs(t *testing.T) {
	refuses := func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
		if md, _ := metadata.FromIncomingContext(ctx); len(md.Get("stranger")) > 0 {
			return nil, status.Error(codes.PermissionDenied, "not you")
		}
		return next(ctx, req)
	}
	l := idempotentBank(t, func(context.Context, string) (string, error) { return "", status.Error(codes.NotFound, "no account") }, refuses)
	client := testpb.NewBankClient(dial(t, l, grpc.WithChainUnaryInterceptor(grpclock.UnaryClientIdempotencyKey())))
	stranger := metadata.AppendToOutgoingContext(t.Context(), "stranger", "yes")
	for _, c := range []struct {
		name    string
		ctx     context.Context
		code    codes.Code
		unknown bool
	}{
		{"answered by the handler", t.Context(), codes.NotFound, false},
		{"answered, with a key of the caller", idempotency.WithKey(t.Context(), "order-17"), codes.NotFound, false},
		{"replayed", idempotency.WithKey(t.Context(), "order-17"), codes.NotFound, false},
		{"refused in front", stranger, codes.PermissionDenied, false},
		{"refused in front, and perhaps sent before", idempotency.WithKey(stranger, "order-17"), codes.PermissionDenied, true},
	} {
		_, err := client.Try(c.ctx, &testpb.Request{Id: "1"})
		if status.Code(err) != c.code || errors.Is(err, idempotency.ErrOutcomeUnknown) != c.unknown {
			t.Errorf("%s: %v; want %v, unknown: %v", c.name, err, c.code, c.unknown)
		}
	}
	_, err := client.Try(idempotency.WithKey(t.Context(), "order-17"), &testpb.Request{Id: "2"})
	if !errors.Is(err, idempotency.ErrKeyReused) || !errors.Is(err, idempotency.ErrOutcomeUnknown) {
		t.Errorf("%v; want ErrKeyReused and ErrOutcomeUnknown: the key may have been sent before", err)
	}
}

func TestACallThatFindsNoServerIsNotOfUnknownOutcome(t *testing.T) {
	conn, err := grpc.NewClient("passthrough:///nowhere", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(context.Context, string) (net.Conn, error) { return nil, errors.New("refused") }),
		grpc.WithChainUnaryInterceptor(grpclock.UnaryClientIdempotencyKey()))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	_, err = testpb.NewBankClient(conn).Try(t.Context(), &testpb.Request{Id: "1"})
	if status.Code(err) != codes.Unavailable || errors.Is(err, idempotency.ErrOutcomeUnknown) {
		t.Errorf("%v; nothing was sent", err)
	}
}

func TestOnlyTheNamedMethodsGetKeys(t *testing.T) {
	var keys []string
	l := start(t, bank{call: func(ctx context.Context, _ string) (string, error) {
		md, _ := metadata.FromIncomingContext(ctx)
		keys = append(keys, md.Get(grpclock.IdempotencyKey)...)
		return "", nil
	}})
	client := testpb.NewBankClient(dial(t, l, grpc.WithChainUnaryInterceptor(grpclock.UnaryClientIdempotencyKey(try))))
	_, errTry := client.Try(t.Context(), &testpb.Request{Id: "1"})
	_, errDebit := client.Debit(t.Context(), &testpb.Request{Id: "1"})
	if errTry != nil || errDebit != nil || len(keys) != 1 {
		t.Errorf("%v, %v, %d keys; want one, for Try", errTry, errDebit, len(keys))
	}
}

// If a gateway's call to a ledger ends with the refusal of a proxy, the gateway does not know
// whether the ledger has paid.
func TestAnUnknownOutcomeIsNotStoredAsTheAnswerOfAGateway(t *testing.T) {
	var denies atomic.Bool
	denies.Store(true)
	proxy := func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
		if denies.Load() {
			return nil, status.Error(codes.PermissionDenied, "not you")
		}
		return next(ctx, req)
	}
	ledger := idempotentBank(t, func(context.Context, string) (string, error) { return "paid", nil }, proxy)
	pay := testpb.NewBankClient(dial(t, ledger, grpc.WithChainUnaryInterceptor(grpclock.UnaryClientIdempotencyKey())))
	gateway := idempotentBank(t, func(ctx context.Context, id string) (string, error) {
		reply, err := pay.Try(ctx, &testpb.Request{Id: id})
		return reply.GetText(), err
	})
	client := testpb.NewBankClient(dial(t, gateway))
	ctx := metadata.AppendToOutgoingContext(t.Context(), grpclock.IdempotencyKey, "order-17")
	if _, err := client.Try(ctx, &testpb.Request{Id: "1"}); status.Code(err) != codes.Unknown {
		t.Errorf("%v; want UNKNOWN", err)
	}
	denies.Store(false)
	if reply, err := client.Try(ctx, &testpb.Request{Id: "1"}); err != nil || reply.GetText() != "paid" {
		t.Errorf("%v, %v; want the answer of the ledger", reply, err)
	}
}

// A retry policy does not send a call again once it has a header of the response.
func TestAMarkDoesNotKeepAPolicyFromRetrying(t *testing.T) {
	runs := 0
	l := idempotentBank(t, func(context.Context, string) (string, error) {
		if runs++; runs == 1 {
			return "", status.Error(codes.Unavailable, "not now")
		}
		return "paid", nil
	})
	client := testpb.NewBankClient(dial(t, l, grpc.WithChainUnaryInterceptor(grpclock.UnaryClientIdempotencyKey()), grpc.WithDefaultServiceConfig(
		`{"methodConfig": [{"name": [{"service": "interlock.test.v1.Bank"}], "retryPolicy": {
			"maxAttempts": 3, "initialBackoff": "0.001s", "maxBackoff": "0.001s", "backoffMultiplier": 1, "retryableStatusCodes": ["UNAVAILABLE"]}}]}`)))
	if reply, err := client.Try(t.Context(), &testpb.Request{Id: "1"}); err != nil || reply.GetText() != "paid" || runs != 2 {
		t.Errorf("%v, %v after %d runs; want the second run's answer", reply, err, runs)
	}
}

// A gateway in front of a ledger dies after the ledger's answer, and its client asks again.
func TestAGatewayThatIsAskedAgainPaysOnce(t *testing.T) {
	var paid atomic.Int32
	ledger := idempotentBank(t, func(context.Context, string) (string, error) { paid.Add(1); return "paid", nil })
	pay := testpb.NewBankClient(dial(t, ledger, grpc.WithChainUnaryInterceptor(grpclock.UnaryClientIdempotencyKey())))
	died := false
	gateway := idempotentBank(t, func(ctx context.Context, id string) (string, error) {
		for range 2 { // two payments
			if _, err := pay.Try(ctx, &testpb.Request{Id: id}); err != nil {
				return "", err
			}
		}
		if !died {
			died = true
			return "", status.Error(codes.Unavailable, "the gateway dies")
		}
		return "done", nil
	})
	client := testpb.NewBankClient(dial(t, gateway))
	ctx, cancel := context.WithTimeout(metadata.AppendToOutgoingContext(t.Context(), grpclock.IdempotencyKey, "order-17"), time.Minute)
	defer cancel()
	if _, err := client.Try(ctx, &testpb.Request{Id: "1"}); status.Code(err) != codes.Unavailable {
		t.Fatal(err)
	}
	if reply, err := client.Try(ctx, &testpb.Request{Id: "1"}); err != nil || reply.GetText() != "done" || paid.Load() != 2 {
		t.Errorf("%v, %v, paid %d times; want each of two payments once", reply, err, paid.Load())
	}
}
