package idempotency_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/idempotency"
	"github.com/interlock-go/interlock/core/idempotency/endpoint"
)

// A gateway hands the client's key on to a service on the same store. With one space of
// records the service refuses the request, and another prefix would part their locks as well.
func TestServicesOnOneStoreHaveRecordsOfTheirOwn(t *testing.T) {
	inBubble(t, func(w *world) {
		gateway, ledger, n := w.engine(idempotency.Global(), idempotency.Service("gateway")), w.engine(idempotency.Global(), idempotency.Service("ledger")), 0
		q := post("k")
		behind := q
		behind.path, behind.uri = "/entries", "/entries"
		through := func(ctx context.Context, _ endpoint.Attempt) (endpoint.Response, bool) {
			w.want(serve(ctx, ledger, behind, answers(201, &n)), "201 run 1")
			return endpoint.Response{Status: 200, Body: []byte("sent")}, true
		}
		w.want(serve(w.Context(), gateway, q, through), "200 sent")
		w.want(serve(w.Context(), gateway, q, through), "replay 200 sent")
		w.want(serve(w.Context(), w.engine(idempotency.Global(), idempotency.Service("ledger")), behind, answers(201, &n)), "replay 201 run 1")
		if err := ledger.Forget(w.Context(), "", "k"); err != nil {
			t.Fatal(err)
		}
		w.want(serve(w.Context(), gateway, q, through), "replay 200 sent")
		w.want(serve(w.Context(), ledger, behind, answers(201, &n)), "201 run 2")
	})
}

func TestTheNameOfAServiceIsAName(t *testing.T) {
	inBubble(t, func(w *world) {
		for _, name := range []string{"", "a b", "a\x00b", "ä", strings.Repeat("x", 65)} {
			_, err := idempotency.New(w.store, idempotency.Global(), idempotency.Service(name))
			if !errors.Is(err, core.ErrConfig) {
				t.Errorf("%q: %v; want ErrConfig", name, err)
			}
		}
	})
}
