package adaptertest

import (
	"net/http"
	"net/http/httptest"
	"testing"
)

// Deaf is a ResponseWriter that costs nothing either.
type Deaf struct{ Headers http.Header }

// Header implements http.ResponseWriter.
func (d Deaf) Header() http.Header { return d.Headers }

// Write implements http.ResponseWriter.
func (d Deaf) Write(b []byte) (int, error) { return len(b), nil }

// WriteHeader implements http.ResponseWriter.
func (d Deaf) WriteHeader(int) {}

// Pair is a router without and one with the middleware.
type Pair struct{ Bare, Locked http.Handler }

// Benchmark runs both routers of a pair; the difference is the price of the
// middleware.
func (p Pair) Benchmark(b *testing.B, suffix string) {
	b.Helper()
	for _, c := range []struct {
		name string
		h    http.Handler
	}{{"bare", p.Bare}, {"locked", p.Locked}} {
		b.Run(c.name+suffix, func(b *testing.B) {
			r := httptest.NewRequestWithContext(b.Context(), http.MethodPost, "/accounts/42/debit", http.NoBody)
			w := Deaf{http.Header{}}
			b.ReportAllocs()
			for b.Loop() {
				c.h.ServeHTTP(w, r)
			}
		})
	}
}

// AtMost fails the test if the middleware costs more allocations a request than
// the budget.
func (p Pair) AtMost(tb testing.TB, budget float64) {
	tb.Helper()
	allocs := func(h http.Handler) float64 {
		r := httptest.NewRequestWithContext(tb.Context(), http.MethodPost, "/accounts/42/debit", http.NoBody)
		w := Deaf{http.Header{}}
		return testing.AllocsPerRun(1000, func() { h.ServeHTTP(w, r) })
	}
	above := allocs(p.Locked) - allocs(p.Bare)
	tb.Logf("%v allocations above the bare framework", above)
	if above > budget {
		tb.Errorf("%v allocations above the bare framework; budget %v", above, budget)
	}
}
