package httplock_test

import (
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/interlock-go/interlock/core/idempotency"
	"github.com/interlock-go/interlock/core/memstore"
	"github.com/interlock-go/interlock/httplock"
	"github.com/interlock-go/interlock/internal/testkit"
)

// A malformed form that middleware in front has parsed is the client's mistake. It is no
// mistake of the server, and an operator need not see it.
func TestAMalformedFormThatWasParsedInFrontIsTheClientsMistake(t *testing.T) {
	engine, err := idempotency.New(memstore.New(), idempotency.Global())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = engine.Close(t.Context()) })
	h := httplock.Idempotent(engine)(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, r.PostFormValue("amount"))
	}))
	srv := testkit.Serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_ = r.ParseForm()
		h.ServeHTTP(w, r)
	}))
	for body, want := range map[string]int{"&": 400, "%zz=1": 400, "a;b=1": 400, "amount=5": 200} {
		a := testkit.Do(t, srv, http.MethodPost, "/", func(r *http.Request) {
			r.Header.Set("Idempotency-Key", "k")
			r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
			r.Body, r.ContentLength = io.NopCloser(strings.NewReader(body)), int64(len(body))
		})
		if a.Status != want {
			t.Errorf("%q: %d %s, want %d", body, a.Status, a.Body, want)
		}
	}
}
