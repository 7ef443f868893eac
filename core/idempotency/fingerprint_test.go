package idempotency_test

import (
	"context"
	"fmt"
	"slices"
	"testing"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/adapter"
	"github.com/interlock-go/interlock/core/idempotency"
	"github.com/interlock-go/interlock/core/idempotency/endpoint"
	"github.com/interlock-go/interlock/core/memstore"
)

// buffered is a call that keeps its body in one buffer, as the adapters for HTTP do.
type buffered struct{ adapter.Message }

func (*buffered) Protocol() string                 { return endpoint.HTTP }
func (*buffered) Key() (string, error)             { return "k", nil }
func (*buffered) Target() (string, string, string) { return "POST", "/payments", "" }
func (*buffered) Origin() (string, string, string) { return "", "/payments", "" }

// under is an engine under a rule that gets its keys from f.
func (w *world) under(f func() []string, opts ...idempotency.Option) *idempotency.Engine {
	w.Helper()
	locker, err := core.New(memstore.New())
	if err != nil {
		w.Fatal(err)
	}
	w.Cleanup(func() { _ = locker.Close(context.Background()) })
	guard := core.Serialize(locker, "", core.Name("debit"), core.KeyFunc(func(context.Context, core.Request) ([]string, error) {
		return f(), nil
	}))
	return w.engine(append(opts, idempotency.Under(guard))...)
}

// A function that removed insignificant text from its argument also changed the key of
// the lock: two payments of one account ran at the same time.
func TestAFingerprintFunctionChangesNeitherTheLockNorTheRequest(t *testing.T) {
	inBubble(t, func(w *world) {
		cut := func(_ context.Context, req core.Request, p *idempotency.Parts) error {
			for i, key := range p.Keys {
				p.Keys[i] = key[len("account/"):]
			}
			body, err := req.Body(1 << 10)
			clear(body)
			clear(p.Body)
			return err
		}
		e := w.under(func() []string { return []string{"account/7", "account/8"} }, idempotency.Fingerprint(cut), idempotency.Global())
		q := &buffered{adapter.Message{Payload: []byte("pay 1")}}
		ran := false
		v := e.Do(w.Context(), q, endpoint.Handler{Run: func(ctx context.Context, _ endpoint.Attempt) (endpoint.Response, bool) {
			ran = true
			w.want(fmt.Sprint(core.LeaseFromContext(ctx).Keys()), "[account/7 account/8]")
			w.want(string(q.Payload), "pay 1")
			return endpoint.Response{Status: 201}, true
		}})
		if v.Refusal != nil || !ran {
			t.Errorf("%+v, the handler ran: %v", v, ran)
		}
	})
}

// A KeyFunc that ranges over a map makes the keys in another order each time.
func TestTheOrderOfTheLockKeysMakesNoOtherRequest(t *testing.T) {
	inBubble(t, func(w *world) {
		keys, n := []string{"account/7", "account/8", "account/9"}, 0
		e := w.under(func() []string { return keys })
		w.want(serve(w.Context(), e, post("k"), answers(201, &n)), "201 run 1")
		slices.Reverse(keys)
		w.want(serve(w.Context(), e, post("k"), answers(201, &n)), "replay 201 run 1")
		keys = append(keys, "account/8") // one lock, named twice
		w.want(serve(w.Context(), e, post("k"), answers(201, &n)), "replay 201 run 1")
		keys = keys[:2]
		w.want(serve(w.Context(), e, post("k"), answers(201, &n)), "idempotency-key-reused")
	})
}
