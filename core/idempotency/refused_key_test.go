package idempotency_test

import (
	"context"
	"testing"

	"github.com/interlock-go/interlock/core/idempotency"
	"github.com/interlock-go/interlock/core/idempotency/endpoint"
)

func TestQueryIsASafeMethod(t *testing.T) {
	e, err := idempotency.New(newFake(), idempotency.Global())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = e.Close(context.Background()) }()
	q := post("")
	q.method, q.key = "QUERY", nil
	passed := false
	v := e.Do(t.Context(), q, endpoint.Handler{
		Run: func(context.Context, endpoint.Attempt) (endpoint.Response, bool) {
			t.Error("it is treated as a request with effects")
			return endpoint.Response{}, false
		},
		Pass: func(context.Context) bool { passed = true; return true },
	})
	if v.Refusal != nil || !passed {
		t.Errorf("%+v", v)
	}
}
