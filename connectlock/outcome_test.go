package connectlock_test

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"

	"connectrpc.com/connect/v2"
	"connectrpc.com/connect/v2/connecthttp"
	"google.golang.org/protobuf/types/dynamicpb"

	"github.com/interlock-go/interlock/connectlock"
	"github.com/interlock-go/interlock/core/idempotency"
	"github.com/interlock-go/interlock/core/memstore"
	"github.com/interlock-go/interlock/grpclock"
)

// idempotentBank serves a bank with the idempotent method Debit.
func idempotentBank(
	t *testing.T, call func(ctx context.Context, req *dynamicpb.Message) (string, error), front ...connect.ServerInterceptor,
) *httptest.Server {
	t.Helper()
	engine, err := idempotency.New(memstore.New(), idempotency.Global())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = engine.Close(context.Background()) })
	return serve(t, newServer(call, nil, append(front, connectlock.Protect(nil, grpclock.Methods{debit: engine}).Interceptor())...))
}

// losing is a transport that loses the first answer of each two.
type losing struct {
	http.RoundTripper
	n atomic.Int32
}

func (l *losing) RoundTrip(r *http.Request) (*http.Response, error) {
	res, err := l.RoundTripper.RoundTrip(r)
	if err == nil && l.n.Add(1)%2 == 1 {
		_ = res.Body.Close()
		return nil, errors.New("the connection was lost")
	}
	return res, err
}

// The key of a call without an answer has left the header, and a call with another key would pay
// twice.
func TestACallWhoseAnswerIsLostKeepsItsKey(t *testing.T) {
	var paid atomic.Int32
	srv := idempotentBank(t, func(context.Context, *dynamicpb.Message) (string, error) { paid.Add(1); return "paid", nil })
	for name, options := range protocols {
		for _, interceptors := range [][]connect.ClientInterceptor{
			{connectlock.UnaryClientIdempotencyKey()},
			{connectlock.UnaryClientIdempotencyKey(), connectlock.UnaryClientRetry()},
		} {
			paid.Store(0)
			lossy := &http.Client{Transport: &losing{RoundTripper: srv.Client().Transport}}
			client := connect.NewClient(connecthttp.NewTransport(lossy, srv.URL, options...), interceptors...)
			_, err := send(t.Context(), client, debit, "id", "42")
			var failed *idempotency.RequestError
			if !errors.As(err, &failed) || !errors.Is(err, idempotency.ErrOutcomeUnknown) || failed.Key == "" || failed.RetryAfter <= 0 {
				t.Fatalf("%s: %v; want an unknown outcome with the key, and when to ask again", name, err)
			}
			if connect.CodeOf(err) == connect.CodeUnknown && name == "connect" {
				t.Errorf("%s: %v; want the code of the transport", name, err)
			}
			text, err := send(idempotency.WithKey(t.Context(), failed.Key), client, debit, "id", "42")
			if text != "paid" || err != nil || paid.Load() != 1 {
				t.Errorf("%s: %q, %v, paid %d times; want one payment", name, text, err, paid.Load())
			}
		}
		paid.Store(0)
		lossy := &http.Client{Transport: &losing{RoundTripper: srv.Client().Transport}}
		client := connect.NewClient(connecthttp.NewTransport(lossy, srv.URL, options...),
			connectlock.UnaryClientIdempotencyKey(), connectlock.UnaryClientRetry(grpclock.RetryUnanswered()))
		if text, err := send(t.Context(), client, debit, "id", "42"); text != "paid" || err != nil || paid.Load() != 1 {
			t.Errorf("%s, RetryUnanswered: %q, %v, paid %d times; want one payment, answered", name, text, err, paid.Load())
		}
	}
}

func TestAnErrorThatSettlesACallStaysAsItIs(t *testing.T) {
	stranger := func(next connect.ServerFunc) connect.ServerFunc {
		return func(ctx context.Context, spec connect.Spec, stream connect.ServerStream) error {
			if info, ok := connect.CallInfoForServerContext(ctx); ok && info.RequestHeader().Has("Stranger") {
				return connect.NewError(connect.CodePermissionDenied, "not you")
			}
			return next(ctx, spec, stream)
		}
	}
	srv := idempotentBank(t, func(context.Context, *dynamicpb.Message) (string, error) {
		return "", connect.NewError(connect.CodeNotFound, "no account")
	}, stranger)
	for name, options := range protocols {
		client := connect.NewClient(connecthttp.NewTransport(srv.Client(), srv.URL, options...), connectlock.UnaryClientIdempotencyKey())
		denied, info := connect.NewClientContext(t.Context())
		info.RequestHeader().Set("Stranger", "yes")
		for _, c := range []struct {
			name    string
			ctx     context.Context
			code    connect.Code
			unknown bool
		}{
			{"answered by the handler", t.Context(), connect.CodeNotFound, false},
			{"answered, with a key of the caller", idempotency.WithKey(t.Context(), "order-"+name), connect.CodeNotFound, false},
			{"replayed", idempotency.WithKey(t.Context(), "order-"+name), connect.CodeNotFound, false},
			{"refused in front", denied, connect.CodePermissionDenied, false},
			{"refused in front, and perhaps sent before", idempotency.WithKey(denied, "order-"+name), connect.CodePermissionDenied, true},
		} {
			_, err := send(c.ctx, client, debit, "id", "42")
			if connect.CodeOf(err) != c.code || errors.Is(err, idempotency.ErrOutcomeUnknown) != c.unknown {
				t.Errorf("%s, %s: %v; want %v, unknown: %v", name, c.name, err, c.code, c.unknown)
			}
		}
	}
}

func TestACallThatFindsNoServerIsNotOfUnknownOutcome(t *testing.T) {
	for name, options := range protocols {
		srv := httptest.NewServer(http.NotFoundHandler())
		srv.Close() // nothing listens there
		client := connect.NewClient(connecthttp.NewTransport(&http.Client{Transport: &http.Transport{}}, srv.URL, options...),
			connectlock.UnaryClientIdempotencyKey(), connectlock.UnaryClientRetry())
		if _, err := send(t.Context(), client, debit, "id", "42"); connect.CodeOf(err) != connect.CodeUnavailable || errors.Is(err, idempotency.ErrOutcomeUnknown) {
			t.Errorf("%s: %v; nothing was sent", name, err)
		}
	}
}

// A gateway in front of a ledger dies after the ledger's answer, and its client asks again.
func TestAGatewayThatIsAskedAgainPaysOnce(t *testing.T) {
	var paid atomic.Int32
	ledger := idempotentBank(t, func(context.Context, *dynamicpb.Message) (string, error) { paid.Add(1); return "paid", nil })
	pay := connect.NewClient(connecthttp.NewTransport(ledger.Client(), ledger.URL), connectlock.UnaryClientIdempotencyKey())
	died := false
	gateway := idempotentBank(t, func(ctx context.Context, _ *dynamicpb.Message) (string, error) {
		for range 2 { // two payments
			if _, err := send(ctx, pay, debit, "id", "42"); err != nil {
				return "", err
			}
		}
		if !died {
			died = true
			return "", connect.NewError(connect.CodeUnavailable, "the gateway dies")
		}
		return "done", nil
	})
	client := connect.NewClient(connecthttp.NewTransport(gateway.Client(), gateway.URL), connectlock.UnaryClientIdempotencyKey())
	ctx := idempotency.WithKey(t.Context(), "order-17")
	if _, err := send(ctx, client, debit, "id", "42"); connect.CodeOf(err) != connect.CodeUnavailable {
		t.Fatal(err)
	}
	if text, err := send(ctx, client, debit, "id", "42"); text != "done" || err != nil || paid.Load() != 2 {
		t.Errorf("%q, %v, paid %d times; want each of two payments once", text, err, paid.Load())
	}
}
