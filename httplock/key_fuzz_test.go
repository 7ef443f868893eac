package httplock_test

import (
	"bufio"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	"github.com/go-chi/chi/v5"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/httplock"
	"github.com/interlock-go/interlock/internal/testkit"
)

// FuzzKeys sends possible requests of a client. It is refused as the client's
// mistake, or locks the key of exactly the values that the handler sees, and the
// key is the same with either router.
func FuzzKeys(f *testing.F) {
	for _, s := range [][3]string{
		{"/accounts/42/debit?q=1", "acme", "POST"},
		{"/accounts/a%2Fb/debit?q=%2F", "a/b", "POST"},
		{"/accounts/%41/debit?q=a&q=b", "", "POST"},
		{"/accounts/%252F/debit?q=%zz", "%2F", "POST"},
		{"/accounts/../debit?q=1;q=2", "x", "POST"},
		{"//accounts//debit", "{}", "POST"},
		{"http://h/accounts/%7B%7D/debit?q=%00", "\xff", "POST"},
		{"*", "x", "OPTIONS"},
		{"/accounts/a;b=c/debit?q=+", "a\r\nX-Tenant: b", "POST"},
	} {
		f.Add(s[0], s[1], s[2])
	}
	old := slog.Default()
	slog.SetDefault(slog.New(slog.DiscardHandler)) // for a rule that does not fit its route
	defer slog.SetDefault(old)
	guard := core.Serialize(testkit.Locker(f), "account/{id}/{header.X-Tenant}/{query.q}")
	var seen []string // the values of the handler, and then the key
	handler := func(param func(*http.Request) string) http.Handler {
		return http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			seen = []string{
				param(r), r.Header.Get("X-Tenant"), r.URL.Query().Get("q"), core.LeaseFromContext(r.Context()).Key(),
			}
		})
	}
	mux := http.NewServeMux()
	mux.Handle("POST /accounts/{id}/debit", httplock.Guard(guard)(handler(func(r *http.Request) string {
		return r.PathValue("id")
	})))
	router := chi.NewRouter()
	router.With(httplock.Guard(guard, httplock.RawParams())).Method("POST", "/accounts/{id}/debit",
		handler(func(r *http.Request) string {
			id := chi.URLParam(r, "id")
			if r.URL.RawPath != "" {
				id, _ = url.PathUnescape(id)
			}
			return id
		}))

	f.Fuzz(func(t *testing.T, target, tenant, method string) {
		text := method + " " + target + " HTTP/1.1\r\nHost: h\r\nX-Tenant: " + tenant + "\r\n\r\n"
		var keys []string
		for _, h := range []http.Handler{mux, router} {
			r, err := http.ReadRequest(bufio.NewReader(strings.NewReader(text)))
			if err != nil {
				return
			}
			seen = nil
			w := httptest.NewRecorder()
			h.ServeHTTP(w, r)
			if w.Code >= 500 {
				t.Errorf("%q: status %d, %s", text, w.Code, w.Body)
			}
			if seen == nil {
				continue
			}
			want, err := core.Key("account", seen[0], seen[1], seen[2])
			if err != nil || seen[3] != want {
				t.Errorf("%q: the key is %q, want %q, %v", text, seen[3], want, err)
			}
			keys = append(keys, seen[3])
		}
		if len(keys) == 2 && keys[0] != keys[1] {
			t.Errorf("%q: two keys: %q", text, keys)
		}
	})
}
