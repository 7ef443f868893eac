package idempotency_test

import (
	"context"
	"testing"

	"github.com/interlock-go/interlock/core/idempotency"
	"github.com/interlock-go/interlock/core/idempotency/endpoint"
)

// The middleware is on a group and on a route, and what stands between the two rewrites the
// request. It is one request all the same.
func TestARequestThatIsRewrittenOnItsWayIsStillTheSameRequest(t *testing.T) {
	for name, change := range map[string]func(*request){
		"as it was":             func(*request) {},
		"path stripped":         func(q *request) { q.path = "/payments" },
		"method overridden":     func(q *request) { q.method = "PUT" },
		"path and query":        func(q *request) { q.path, q.query = "/pay", "" },
		"host of a proxy":       func(q *request) { q.host = "bank.example" },
		"path and method":       func(q *request) { q.path, q.method = "/", "PATCH" },
		"no target, but origin": func(q *request) { q.path, q.method = "", "" },
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(w *world) {
				outer, inner, n := w.engine(), w.engine(), 0
				q := post("k")
				q.path, q.uri, q.host = "/eu/payments", "/eu/payments", "10.0.0.1"
				twice := func(ctx context.Context, _ endpoint.Attempt) (endpoint.Response, bool) {
					rewritten := q
					change(&rewritten)
					w.want(serve(ctx, inner, rewritten, answers(201, &n)), "passed 201 run 1")
					return endpoint.Response{Status: 201, Body: []byte("run 1")}, true
				}
				w.want(serve(w.Context(), outer, q, twice), "201 run 1")
				w.want(serve(w.Context(), outer, q, twice), "replay 201 run 1")
			})
		})
	}
}

func TestAnotherRequestWithTheKeyOfTheRequestAroundItIsRefused(t *testing.T) {
	for name, change := range map[string]func(*request){
		"another path":                func(q *request) { q.path, q.uri = "/refunds", "/refunds" },
		"another path, as stripped":   func(q *request) { q.uri = "/us/payments" },
		"another host and path":       func(q *request) { q.host, q.path = "bank.example", "/pay" },
		"another protocol, same path": func(q *request) { q.protocol = endpoint.GRPC },
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(w *world) {
				e, n := w.engine(), 0
				q := post("k")
				q.uri = "/eu/payments"
				w.want(serve(w.Context(), e, q, func(ctx context.Context, _ endpoint.Attempt) (endpoint.Response, bool) {
					other := q
					change(&other)
					w.want(serve(ctx, w.engine(idempotency.Name("inner")), other, answers(201, &n)), "idempotency-key-reused")
					return endpoint.Response{Status: 200}, true
				}), "200 ")
				if n != 0 {
					t.Errorf("the inner handler ran %d times", n)
				}
			})
		})
	}
}
