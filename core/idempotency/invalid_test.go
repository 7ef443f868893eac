package idempotency_test

import (
	"context"
	"testing"

	"github.com/interlock-go/interlock/core/idempotency"
	"github.com/interlock-go/interlock/core/idempotency/endpoint"
)

func TestInvalidRequestsFillTheStoreUnlessTheyAreReleased(t *testing.T) {
	for name, c := range map[string]struct {
		protocol string
		status   int
		released bool
	}{
		"400": {endpoint.HTTP, 400, true}, "422": {endpoint.HTTP, 422, true}, "404": {endpoint.HTTP, 404, false},
		"INVALID_ARGUMENT": {endpoint.GRPC, 3, true}, "OUT_OF_RANGE": {endpoint.GRPC, 11, true},
		"FAILED_PRECONDITION": {endpoint.GRPC, 9, false},
	} {
		for _, release := range []bool{false, true} {
			store := newFake()
			opts := []idempotency.Option{idempotency.Global()}
			if release {
				opts = append(opts, idempotency.ReleaseInvalid())
			}
			e, err := idempotency.New(store, opts...)
			if err != nil {
				t.Fatal(err)
			}
			q := post("k")
			q.protocol = c.protocol
			e.Do(t.Context(), q, endpoint.Handler{Run: func(context.Context, endpoint.Attempt) (endpoint.Response, bool) {
				return endpoint.Response{Status: c.status}, true
			}})
			if kept := store.only(t) != nil; kept != (!release || !c.released) {
				t.Errorf("%s, ReleaseInvalid %v: kept is %v", name, release, kept)
			}
			_ = e.Close(context.Background())
		}
	}
}
