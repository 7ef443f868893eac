package httplock_test

import (
	"io"
	"net/http"
	"testing"

	"github.com/interlock-go/interlock/httplock"
	"github.com/interlock-go/interlock/internal/testkit"
)

// The middleware is on a group, and on a route of it below StripPrefix.
func TestIdempotentTwiceWithAStrippedPrefixBetween(t *testing.T) {
	testkit.LogTo(t)
	engine, runs := testkit.Engine(t), 0
	routes := http.NewServeMux()
	routes.Handle("POST /payments", httplock.Idempotent(engine)(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		runs++
		w.WriteHeader(http.StatusCreated)
		_, _ = io.WriteString(w, "paid")
	})))
	group := http.NewServeMux()
	group.Handle("/v1/", httplock.Idempotent(engine)(http.StripPrefix("/v1", routes)))
	srv := testkit.Serve(t, group)
	testkit.Post(t, srv, "/v1/payments").WantOwn(t, 201, "paid")
	testkit.Post(t, srv, "/v1/payments").WantReplay(t, 201, "paid")
	if runs != 1 {
		t.Errorf("the handler ran %d times", runs)
	}
}
