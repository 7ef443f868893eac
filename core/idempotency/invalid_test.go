package idempotency_test

import (
	"context"
	"testing"

	"github.com/interlock-go/interlock/core/idempotency"
)

func TestInvalidRequestsFillTheStoreUnlessTheyAreReleased(t *testing.T) {
	for name, c := range map[string]struct {
		protocol string
		status   int
		released bool
	}{
		"400": {idempotency.HTTP, 400, true}, "422": {idempotency.HTTP, 422, true}, "404": {idempotency.HTTP, 404, false},
		"INVALID_ARGUMENT": {idempotency.GRPC, 3, true}, "OUT_OF_RANGE": {idempotency.GRPC, 11, true},
		"FAILED_PRECONDITION": {idempotency.GRPC, 9, false},
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
			e.Do(t.Context(), q, idempotency.Handler{Run: func(context.Context, *idempotency.Attempt) (idempotency.Response, bool) {
				return idempotency.Response{Status: c.status}, true
			}})
			if kept := store.only(t) != nil; kept != (!release || !c.released) {
				t.Errorf("%s, ReleaseInvalid %v: kept is %v", name, release, kept)
			}
			_ = e.Close(context.Background())
		}
	}
}
