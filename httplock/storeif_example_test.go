package httplock_test

import (
	"context"
	"encoding/json"
	"fmt"
	"log"
	"net/http"
	"net/http/httptest"

	"github.com/interlock-go/interlock/core/idempotency"
	"github.com/interlock-go/interlock/core/idempotency/endpoint"
	"github.com/interlock-go/interlock/core/memstore"
	"github.com/interlock-go/interlock/httplock"
)

// GraphQL answers 200 when a call fails, and names the error in the body. Such an answer is
// not kept: the retry is carried out.
func ExampleIdempotent_storeIf() {
	engine, err := idempotency.New(memstore.New(), idempotency.Global())
	if err != nil {
		log.Fatal(err)
	}
	defer engine.Close(context.Background())

	graphql := engine.With(idempotency.StoreIf(func(_ context.Context, answer endpoint.Response) bool {
		var reply struct{ Errors []json.RawMessage }
		return json.Unmarshal(answer.Body, &reply) != nil || len(reply.Errors) == 0
	}))
	answers := []string{`{"errors":[{"message":"no connection"}]}`, `{"data":{"paid":5}}`}
	handler := httplock.Idempotent(graphql)(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = fmt.Fprint(w, answers[0])
		answers = answers[1:]
	}))
	for range 3 {
		r := httptest.NewRequest("POST", "/graphql", nil)
		r.Header.Set("Idempotency-Key", "k")
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, r)
		fmt.Printf("%s, replayed: %q\n", w.Body, w.Header().Get("Idempotent-Replayed"))
	}
	// Output:
	// {"errors":[{"message":"no connection"}]}, replayed: ""
	// {"data":{"paid":5}}, replayed: ""
	// {"data":{"paid":5}}, replayed: "true"
}
