package httplock_test

import (
	"context"
	"fmt"
	"log"
	"net/http"
	"net/http/httptest"
	"strings"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/idempotency"
	"github.com/interlock-go/interlock/core/memstore"
	"github.com/interlock-go/interlock/core/reason"
	"github.com/interlock-go/interlock/httplock"
)

// A merchant's endpoint answers agents as the Agentic Commerce Protocol demands.
func ExampleIdempotent_profile() {
	store := memstore.New() // in production: a redisstore
	engine, err := idempotency.New(store, idempotency.Scope(core.FromContext(userKey{})))
	if err != nil {
		log.Fatal(err)
	}
	defer engine.Close(context.Background())

	create := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusCreated)
		_, _ = fmt.Fprint(w, `{"id":"cs_1"}`)
	})
	agentic := engine.With(idempotency.Profile(reason.AgenticCommerce))
	mux := http.NewServeMux()
	mux.Handle("POST /checkout_sessions", httplock.Idempotent(agentic)(create))

	for _, request := range [][2]string{{"", `{"items":[]}`}, {"k1", `{"items":[],"n":1.0}`}, {"k1", `{"n":1,"items":[]}`}, {"k1", `{}`}} {
		r := httptest.NewRequest("POST", "/checkout_sessions", strings.NewReader(request[1]))
		if request[0] != "" {
			r.Header.Set("Idempotency-Key", request[0])
		}
		w := httptest.NewRecorder()
		mux.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), userKey{}, "agent"))) // your authentication
		fmt.Println(w.Code, w.Header().Get("Idempotent-Replayed"), w.Body)
	}
	// Output:
	// 400  {"type":"invalid_request","code":"idempotency_key_required","message":"The request needs an idempotency key. Nothing was done."}
	// 201  {"id":"cs_1"}
	// 201 true {"id":"cs_1"}
	// 422  {"type":"invalid_request","code":"idempotency_conflict","message":"The idempotency key was used for another request. Nothing was done."}
}
