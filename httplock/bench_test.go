package httplock_test

import (
	"context"
	"net/http"
	"testing"
	"time"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/internal/adaptertest"
	"github.com/interlock-go/interlock/internal/adaptertest/freestore"
)

var ok = []byte("ok")

func answerOK(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(ok) }

// answerUnderContext is a handler that also uses its context, as one that asks a
// database does: the lease's context is then made in full.
func answerUnderContext(w http.ResponseWriter, r *http.Request) {
	ctx, cancel := context.WithTimeout(r.Context(), time.Minute)
	defer cancel()
	if ctx.Err() == nil {
		_, _ = w.Write(ok)
	}
}

// muxes returns a router without and one with the middleware.
func muxes(tb testing.TB, h http.HandlerFunc) adaptertest.Pair {
	tb.Helper()
	locker := freestore.Locker(tb)
	bare := http.NewServeMux()
	bare.Handle("POST /accounts/{id}/debit", h)
	return adaptertest.Pair{Bare: bare, Locked: route("POST /accounts/{id}/debit", core.Serialize(locker, "account/{id}"), h)}
}

func BenchmarkServeMux(b *testing.B) {
	muxes(b, answerOK).Benchmark(b, "")
	muxes(b, answerUnderContext).Benchmark(b, "-context")
}

func TestMiddlewareStaysWithinItsAllocations(t *testing.T) {
	muxes(t, answerOK).AtMost(t, 16)
	// A child of the lease's context costs the standard library's machinery.
	muxes(t, answerUnderContext).AtMost(t, 20)
}
