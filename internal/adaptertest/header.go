package adaptertest

import (
	"maps"
	"net/http"
	"slices"
	"testing"
)

// Describe sets, or adds to, header fields that describe an answer.
func Describe(header http.Header) {
	for name, value := range map[string]string{
		"ETag": `"1"`, "Content-Encoding": "br", "Location": "/payments/1", "Last-Modified": "Sun, 01 Nov 2026 00:00:00 GMT",
		"Cache-Control": "max-age=3600", "Content-Length": "1", "Content-Type": "text/csv", "X-Balance": "100",
	} {
		header.Set(name, value)
	}
	header.Add("Set-Cookie", "paid=1")
	header.Add("Vary", "Accept")
	header.Del("X-Front")
}

// InFront is middleware that sets header fields of its own.
func InFront(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Set-Cookie", "csrf=1")
		w.Header().Set("Vary", "Origin")
		w.Header().Set("X-Front", "1")
		next.ServeHTTP(w, r)
	})
}

// WantUndescribed holds the header of a refusal behind InFront against what there
// must be: nothing of Describe.
func (a Answer) WantUndescribed(tb testing.TB) {
	tb.Helper()
	got := maps.Clone(a.Header)
	delete(got, "Date")
	delete(got, "Content-Length") // that of the problem
	want := http.Header{
		"Set-Cookie": {"csrf=1"}, "Vary": {"Origin"}, "X-Front": {"1"},
		"Cache-Control": {"no-store"}, "Content-Type": {"application/problem+json"},
	}
	if !maps.EqualFunc(got, want, slices.Equal) {
		tb.Errorf("header %v; want %v", got, want)
	}
}
