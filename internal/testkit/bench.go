package testkit

import (
	"context"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/internal/testkit/freestore"
)

// Deaf is a ResponseWriter that costs nothing.
type Deaf struct{ Headers http.Header }

// Header implements http.ResponseWriter.
func (d Deaf) Header() http.Header { return d.Headers }

// Write implements http.ResponseWriter.
func (d Deaf) Write(b []byte) (int, error) { return len(b), nil }

// WriteHeader implements http.ResponseWriter.
func (d Deaf) WriteHeader(int) {}

// Router serves a handler at POST /accounts/{id}/debit with a framework, under a
// lock, or bare if the lock is nil. The answer is empty unless the handler returns
// an error.
type Router func(lock *core.Guard, handle func(ctx context.Context) error) http.Handler

// handlers are the handlers of the measurements.
var handlers = []struct {
	suffix string
	handle func(ctx context.Context) error
	budget float64 // of the middleware's allocations
}{
	{"", func(context.Context) error { return nil }, 16},
	// A handler that also uses its context, as a handler that asks a database does: the
	// lease's context is then made in full, and a child of it costs the standard
	// library's machinery.
	{"-context", func(ctx context.Context) error {
		ctx, cancel := context.WithTimeout(ctx, time.Minute)
		defer cancel()
		return ctx.Err()
	}, 20},
}

// Benchmark runs a router bare and with the middleware; the difference is the price
// of the middleware.
func (router Router) Benchmark(b *testing.B) {
	b.Helper()
	lock := core.Serialize(freestore.Locker(b), "account/{id}")
	for _, h := range handlers {
		for _, c := range []struct {
			name string
			lock *core.Guard
		}{{"bare", nil}, {"locked", lock}} {
			b.Run(c.name+h.suffix, func(b *testing.B) {
				serve := once(b, router(c.lock, h.handle))
				b.ReportAllocs()
				for b.Loop() {
					serve()
				}
			})
		}
	}
}

// WantAllocations fails the test if the middleware costs more allocations a request
// than its budget.
func (router Router) WantAllocations(tb testing.TB) {
	tb.Helper()
	lock := core.Serialize(freestore.Locker(tb), "account/{id}")
	for _, h := range handlers {
		above := testing.AllocsPerRun(1000, once(tb, router(lock, h.handle))) - testing.AllocsPerRun(1000, once(tb, router(nil, h.handle)))
		tb.Logf("%v allocations above the bare framework", above)
		if above > h.budget {
			tb.Errorf("%v allocations above the bare framework; budget %v", above, h.budget)
		}
	}
}

// once serves one request, the same each time.
func once(tb testing.TB, h http.Handler) func() {
	r := httptest.NewRequestWithContext(tb.Context(), http.MethodPost, "/accounts/42/debit", http.NoBody)
	w := Deaf{http.Header{}}
	return func() { h.ServeHTTP(w, r) }
}
