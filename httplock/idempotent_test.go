package httplock_test

import (
	"net/http"
	"testing"

	"github.com/interlock-go/interlock/httplock"
	"github.com/interlock-go/interlock/internal/idemtest"
)

func serveIdempotent(_ testing.TB, e *idemtest.Endpoint) http.Handler {
	mux := http.NewServeMux()
	mux.Handle(idemtest.Route, httplock.Idempotent(e.Engine)(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		e.ServeHTTP(w, r, r.PathValue("id"))
	})))
	return mux
}

func TestIdempotent(t *testing.T) { idemtest.RunHTTP(t, serveIdempotent) }
