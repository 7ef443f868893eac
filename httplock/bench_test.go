package httplock_test

import (
	"context"
	"net/http"
	"testing"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/httplock"
	"github.com/interlock-go/interlock/internal/testkit"
)

var ok = []byte("ok")

var router testkit.Router = func(lock *core.Guard, handle func(ctx context.Context) error) http.Handler {
	var h http.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if handle(r.Context()) == nil {
			_, _ = w.Write(ok)
		}
	})
	if lock != nil {
		h = httplock.Guard(lock)(h)
	}
	mux := http.NewServeMux()
	mux.Handle("POST /accounts/{id}/debit", h)
	return mux
}

func BenchmarkServeMux(b *testing.B) { router.Benchmark(b) }

func TestMiddlewareStaysWithinItsAllocations(t *testing.T) { router.WantAllocations(t) }
