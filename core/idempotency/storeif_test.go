package idempotency_test

import (
	"bytes"
	"context"
	"testing"
	"time"

	"github.com/interlock-go/interlock/core/idempotency"
	"github.com/interlock-go/interlock/core/idempotency/endpoint"
	"github.com/interlock-go/interlock/core/memstore"
)

// settled is the StoreIf function of a protocol that says in the body that a call failed. It
// writes to all that it gets.
func settled(_ context.Context, answer endpoint.Response) bool {
	ok := !bytes.Contains(answer.Body, []byte("error"))
	clear(answer.Body)
	if values := answer.Header["X"]; values != nil {
		values[0] = "changed"
	}
	answer.Header["Y"] = []string{"added"}
	return ok
}

// says makes a handler with the first answer body, and all others "paid".
func says(status int, body string, runs *int) handler {
	return func(context.Context, endpoint.Attempt) (endpoint.Response, bool) {
		if *runs++; *runs > 1 {
			body = "paid"
		}
		return endpoint.Response{Status: status, Header: map[string][]string{"X": {"1"}}, Body: []byte(body)}, true
	}
}

func TestAnAnswerThatTheApplicationCallsAFailureIsTreatedAsAFailure(t *testing.T) {
	marks := func(h handler) handler {
		return func(ctx context.Context, a endpoint.Attempt) (endpoint.Response, bool) {
			if err := idempotency.MarkEffect(ctx); err != nil {
				t.Error(err)
			}
			return h(ctx, a)
		}
	}
	for name, c := range map[string]struct {
		protocol string
		status   int
		first    string
		opts     []idempotency.Option
		marked   bool
		again    string
	}{
		"HTTP, an error":         {endpoint.HTTP, 200, "error 1", nil, false, "200 paid"},
		"HTTP, none":             {endpoint.HTTP, 200, "done", nil, false, "replay 200 done"},
		"HTTP, refused by it":    {endpoint.HTTP, 404, "error 1", nil, false, "404 paid"},
		"HTTP, invalid":          {endpoint.HTTP, 422, "error 1", nil, false, "422 paid"},
		"HTTP, a failure anyway": {endpoint.HTTP, 500, "done", nil, false, "500 paid"},
		"HTTP, marked":           {endpoint.HTTP, 200, "error 1", nil, true, "replay 200 error 1"},
		"HTTP, strict":           {endpoint.HTTP, 200, "error 1", []idempotency.Option{idempotency.Strict()}, false, "replay 200 error 1"},
		"HTTP, all stored":       {endpoint.HTTP, 200, "error 1", []idempotency.Option{idempotency.StoreAll()}, false, "replay 200 error 1"},
		"HTTP, too long to ask":  {endpoint.HTTP, 200, "error 1", []idempotency.Option{idempotency.MaxResponse(3)}, false, "idempotency-response-unavailable"},
		"HTTP, taken back":       {endpoint.HTTP, 200, "error 1", []idempotency.Option{idempotency.StoreIf(nil)}, false, "replay 200 error 1"},
		"gRPC":                   {endpoint.GRPC, 0, "error 1", nil, false, "0 paid"},
		"a function":             {endpoint.Func, endpoint.FuncDone, "error 1", nil, false, "0 paid"},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(w *world) {
				e, runs := w.engine(append([]idempotency.Option{idempotency.StoreIf(settled)}, c.opts...)...), 0
				h := says(c.status, c.first, &runs)
				if c.marked {
					h = marks(h)
				}
				q := post("k")
				q.protocol = c.protocol
				serve(w.Context(), e, q, h)
				w.want(serve(w.Context(), e, q, h), c.again)
			})
		})
	}
}

// An answer is stored as the handler gave it, also if the function writes to its argument.
func TestStoreIfGetsAnAnswerOfItsOwn(t *testing.T) {
	inBubble(t, func(w *world) {
		e, runs := w.engine(idempotency.StoreIf(settled)), 0
		h := says(200, "done", &runs)
		w.want(serve(w.Context(), e, post("k"), h), "200 done")
		v := e.Do(w.Context(), post("k"), endpoint.Handler{})
		if r := v.Replay; r == nil || string(r.Body) != "done" || r.Header["X"][0] != "1" || r.Header["Y"] != nil {
			t.Errorf("%+v", v)
		}
	})
}

func TestAStoreIfFunctionThatPanicsDoesNotMakeTheEffectHappenAgain(t *testing.T) {
	inBubble(t, func(w *world) {
		e, runs := w.engine(idempotency.StoreIf(func(context.Context, endpoint.Response) bool { panic("no") })), 0
		w.want(serve(w.Context(), e, post("k"), says(200, "done", &runs)), "200 done")
		w.want(serve(w.Context(), e, post("k"), says(200, "done", &runs)), "replay 200 done")
	})
}

func TestATransactionWhoseAnswerTheApplicationCallsAFailureIsRolledBack(t *testing.T) {
	for body, want := range map[string]string{"error 1": "rolled back", "done": "committed"} {
		inBubble(t, func(w *world) {
			l, runs := &ledger{store: memstore.New()}, 0
			e := w.engineOn(l.store, idempotency.StoreIf(settled))
			w.want(serve(w.Context(), e, post("k"), l.pays(t, says(200, body, &runs))), "200 "+body)
			if len(l.ended) != 1 || l.ended[0] != want {
				t.Errorf("%q: %q, want %s", body, l.ended, want)
			}
		})
	}
}

// A guard inside the handler has refused, and the answer that says so has status 200. It is
// no answer of the handler's own.
func TestARefusalInsideAnAnswerThatIsAFailureIsNotStored(t *testing.T) {
	inBubble(t, func(w *world) {
		e, runs := w.engine(idempotency.StoreIf(settled), idempotency.StoreAll()), 0
		inner := w.engine(idempotency.MaxRequest(1))
		h := func(ctx context.Context, _ endpoint.Attempt) (endpoint.Response, bool) {
			if runs++; runs == 1 {
				other := post("another")
				other.path, other.uri = "/refunds", "/refunds"
				return endpoint.Response{Status: 200, Header: map[string][]string{}, Body: []byte("error " + serve(ctx, inner, other, nil))}, true
			}
			return endpoint.Response{Status: 200, Body: []byte("done"), Header: map[string][]string{}}, true
		}
		w.want(serve(w.Context(), e, post("k"), h), "200 error body-too-large")
		<-time.After(time.Second)
		w.want(serve(w.Context(), e, post("k"), h), "200 done")
	})
}
