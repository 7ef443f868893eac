package httplock_test

import (
	"context"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/interlock-go/interlock/core"
)

// free is a Store whose locks are always free, and cost nothing: what is left
// is the middleware.
type free struct{}

func (free) Acquire(context.Context, core.AcquireRequest) (core.Reply, error) {
	return core.Reply{Granted: true, Token: 1, Sent: time.Now()}, nil
}

func (free) Renew(_ context.Context, batch []core.Renewal, done func(int, bool, error)) {
	for i := range batch {
		done(i, false, nil)
	}
}

func (free) Release(context.Context, core.ReleaseRequest) error { return nil }

func (free) Watch(string, time.Time, func(core.Signal)) (stop func()) { return func() {} }

// deaf is a ResponseWriter that costs nothing either.
type deaf struct{ header http.Header }

func (d deaf) Header() http.Header         { return d.header }
func (d deaf) Write(b []byte) (int, error) { return len(b), nil }
func (d deaf) WriteHeader(int)             {}

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
func muxes(t testing.TB, h http.HandlerFunc) (bare, locked *http.ServeMux) {
	t.Helper()
	locker, err := core.New(free{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = locker.Close(context.Background()) })
	bare = http.NewServeMux()
	bare.Handle("POST /accounts/{id}/debit", h)
	return bare, route("POST /accounts/{id}/debit", core.Serialize(locker, "account/{id}"), h)
}

// BenchmarkServeMux is the price of the middleware: the difference between bare
// and locked.
func BenchmarkServeMux(b *testing.B) {
	run := func(name string, h http.Handler) {
		b.Run(name, func(b *testing.B) {
			r := httptest.NewRequestWithContext(b.Context(), "POST", "/accounts/42/debit", nil)
			w := deaf{http.Header{}}
			b.ReportAllocs()
			for b.Loop() {
				h.ServeHTTP(w, r)
			}
		})
	}
	bare, locked := muxes(b, answerOK)
	run("bare", bare)
	run("locked", locked)
	bare, locked = muxes(b, answerUnderContext)
	run("bare-context", bare)
	run("locked-context", locked)
}

func TestMiddlewareStaysWithinItsAllocations(t *testing.T) {
	for _, c := range []struct {
		name   string
		h      http.HandlerFunc
		budget float64
	}{
		{"plain", answerOK, 16},
		// A child of the lease's context costs the standard library's machinery.
		{"with a context of its own", answerUnderContext, 20},
	} {
		bare, locked := muxes(t, c.h)
		allocs := func(h http.Handler) float64 {
			r := httptest.NewRequestWithContext(t.Context(), "POST", "/accounts/42/debit", nil)
			w := deaf{http.Header{}}
			return testing.AllocsPerRun(1000, func() { h.ServeHTTP(w, r) })
		}
		above := allocs(locked) - allocs(bare)
		t.Logf("%s: %v allocations above the bare handler", c.name, above)
		if above > c.budget {
			t.Errorf("%s: %v allocations above the bare handler; budget %v", c.name, above, c.budget)
		}
	}
}
