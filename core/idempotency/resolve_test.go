package idempotency_test

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/idempotency"
	"github.com/interlock-go/interlock/core/idempotency/admin"
	"github.com/interlock-go/interlock/core/idempotency/endpoint"
	"github.com/interlock-go/interlock/core/memstore"
)

func TestAnAnswerThatNoClientCouldBeGivenResolvesNothing(t *testing.T) {
	inBubble(t, func(w *world) {
		e := w.engine(idempotency.MaxResponse(10))
		for name, found := range map[string]admin.Resolution{
			"none":     {},
			"empty":    admin.CarriedOut("", endpoint.Response{Status: 200}),
			"protocol": admin.CarriedOut("smtp", endpoint.Response{Status: 250}),
			"status":   admin.CarriedOut(endpoint.HTTP, endpoint.Response{}),
			"1xx":      admin.CarriedOut(endpoint.HTTP, endpoint.Response{Status: 103}),
			"code":     admin.CarriedOut(endpoint.GRPC, endpoint.Response{Status: 17}),
			"length":   admin.CarriedOut(endpoint.HTTP, endpoint.Response{Status: 200, Body: []byte("eleven byte")}),
		} {
			if err := e.Resolve(w.Context(), "alice", "k", found); !errors.Is(err, core.ErrConfig) {
				w.Errorf("%s: %v", name, err)
			}
		}
		if n := w.store.Requests(memstore.Resolve); n != 0 {
			w.Errorf("the store was asked %d times", n)
		}
	})
}

// crashed leaves a request with a key marked and unanswered, for longer than its
// lease.
func crashed(store *memstore.Store, key string, opts ...idempotency.Option) {
	engine, err := idempotency.New(store, append(opts, idempotency.Scope(scope))...)
	if err != nil {
		panic(err)
	}
	engine.Do(context.Background(), post(key), endpoint.Handler{
		Run: func(ctx context.Context, _ endpoint.Attempt) (endpoint.Response, bool) {
			_ = idempotency.MarkEffect(ctx)
			store.LapseClaims()
			closing, cancel := context.WithCancel(context.Background())
			cancel()
			_ = engine.Close(closing) // ends ctx
			<-ctx.Done()
			return endpoint.Response{}, false
		},
	})
}

func TestAStoreThatIsDownResolvesNothing(t *testing.T) {
	inBubble(t, func(w *world) {
		e := w.engine()
		crashed(w.store, "k")
		w.down()
		if err := e.Resolve(w.Context(), "alice", "k", admin.NotCarriedOut()); !errors.Is(err, core.ErrUnavailable) {
			w.Error(err)
		}
		w.store.Intercept(nil)
		n := 0
		w.want(serve(w.Context(), e, post("k"), answers(200, &n)), "idempotency-outcome-unknown")
		if err := e.Resolve(w.Context(), "alice", "k", admin.NotCarriedOut()); err != nil {
			w.Error(err)
		}
		w.want(serve(w.Context(), e, post("k"), answers(200, &n)), "200 run 1")
	})
}

func TestAResolutionForAnotherProtocolIsNeverReplayed(t *testing.T) {
	inBubble(t, func(w *world) {
		e := w.engine()
		crashed(w.store, "k")
		answer := endpoint.Response{Status: 5, Body: []byte("status")}
		if err := e.Resolve(w.Context(), "alice", "k", admin.CarriedOut(endpoint.GRPC, answer)); err != nil {
			w.Error(err)
		}
		n := 0
		w.want(serve(w.Context(), e, post("k"), answers(200, &n)), "idempotency-unavailable")
		if n != 0 {
			w.Error("it was carried out")
		}
	})
}

// A job asks the bank about payments with an unknown outcome.
func ExampleEngine_Resolve() {
	store := memstore.New() // in earnest: a redisstore
	engine, err := idempotency.New(store, idempotency.Scope(scope))
	if err != nil {
		fmt.Println(err)
		return
	}
	defer engine.Close(context.Background())
	for _, key := range []string{"paid", "not-paid"} {
		crashed(store, key)
	}

	resolve := func(principal, key string, inTheBank bool) error {
		found := admin.NotCarriedOut()
		if inTheBank {
			found = admin.CarriedOut(endpoint.HTTP, endpoint.Response{
				Status: 201, Body: []byte("paid, as we found out"),
			})
		}
		return engine.Resolve(context.Background(), principal, key, found)
	}
	fmt.Println(resolve("alice", "paid", true))
	fmt.Println(resolve("alice", "not-paid", false))
	fmt.Println(resolve("alice", "never-seen", false))

	n := 0
	fmt.Println(serve(context.Background(), engine, post("paid"), answers(200, &n)))
	fmt.Println(serve(context.Background(), engine, post("not-paid"), answers(200, &n)))
	// Output:
	// <nil>
	// <nil>
	// interlock: resolving a record: interlock: the outcome of the request is not unknown
	// replay 201 paid, as we found out
	// 200 run 1
}
