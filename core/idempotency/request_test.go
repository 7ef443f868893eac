package idempotency_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/interlock-go/interlock/core/idempotency"
	"github.com/interlock-go/interlock/core/idempotency/endpoint"
)

func TestRequestsThatAreRefusedBeforeTheClaim(t *testing.T) {
	inBubble(t, func(w *world) {
		e := w.engine(idempotency.MaxRequest(5))
		n := 0
		for want, change := range map[string]func(*request){
			"idempotency-key-missing":      func(q *request) { q.key = nil },
			"idempotency-key-malformed":    func(q *request) { q.key = []string{""} },
			"idempotency-key-malformed ":   func(q *request) { q.key = []string{"a", "a"} },
			"idempotency-key-malformed  ":  func(q *request) { q.key = []string{strings.Repeat("k", 256)} },
			"idempotency-key-malformed   ": func(q *request) { q.key = []string{"a,b"} },
			"body-too-large":               func(q *request) { q.body = "123456" },
			"idempotency-no-principal":     func(q *request) { q.scope = "" },
			"internal":                     func(q *request) { q.scope = "broken" },
		} {
			q := post("k")
			change(&q)
			w.want(serve(w.Context(), e, q, answers(200, &n)), strings.TrimSpace(want))
		}
		if n != 0 || w.asked() != 0 {
			t.Errorf("the handler ran %d times, the store was asked %d times", n, w.asked())
		}
	})
}

func TestRequestsThatPassThrough(t *testing.T) {
	inBubble(t, func(w *world) {
		e := w.engine(idempotency.Optional())
		n := 0
		probe := func(ctx context.Context, _ endpoint.Attempt) (endpoint.Response, bool) {
			if err := idempotency.MarkEffect(ctx); err != nil {
				t.Errorf("MarkEffect without a record: %v", err)
			}
			if g, k := idempotency.Generation(ctx), idempotency.DownstreamKey(ctx); g != 0 || k != "" {
				t.Errorf("generation %d, downstream key %q", g, k)
			}
			return answers(200, &n)(ctx, nil)
		}
		for name, change := range map[string]func(*request){
			"GET":      func(q *request) { q.method = "GET" },
			"HEAD":     func(q *request) { q.method = "HEAD" },
			"OPTIONS":  func(q *request) { q.method = "OPTIONS" },
			"QUERY":    func(q *request) { q.method = "QUERY" },
			"no route": func(q *request) { q.unmatched = true },
			"no key":   func(q *request) { q.key = nil },
		} {
			q := post("k")
			change(&q)
			if got := serve(w.Context(), e, q, probe); !strings.HasPrefix(got, "passed") {
				t.Errorf("%s: %s", name, got)
			}
		}
		q := post("")
		w.want(serve(w.Context(), e, q, probe), "idempotency-key-malformed")
		if w.asked() != 0 {
			t.Errorf("the store was asked: %d times", w.asked())
		}
		if err := idempotency.MarkEffect(t.Context()); !errors.Is(err, idempotency.ErrNoAttempt) {
			t.Errorf("MarkEffect outside: %v", err)
		}
	})
}
