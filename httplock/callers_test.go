package httplock_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/idempotency"
	"github.com/interlock-go/interlock/core/memstore"
	"github.com/interlock-go/interlock/core/reason"
	"github.com/interlock-go/interlock/httplock"
	"github.com/interlock-go/interlock/internal/testkit"
)

// toHandler sends requests to a handler of another process, and counts them.
type toHandler struct {
	handler http.Handler
	sent    int
}

func (h *toHandler) RoundTrip(r *http.Request) (*http.Response, error) {
	h.sent++
	w := httptest.NewRecorder()
	h.handler.ServeHTTP(w, r.WithContext(context.Background())) // as over a network
	return w.Result(), nil
}

// A handler can hold a lock and call a service that locks the same key: it would wait for
// itself, and with a client that retries for as long as all tries last.
func TestACallForALockOfItsCallerIsRefusedAtOnce(t *testing.T) {
	for name, c := range map[string]struct {
		client *httplock.Transport
		method string
		sent   int
		body   string
		took   time.Duration
	}{
		"by POST":     {&httplock.Transport{}, "POST", 1, "409 urn:interlock:problem:held-by-caller", 0},
		"by GET":      {&httplock.Transport{}, "GET", 1, "409 urn:interlock:problem:held-by-caller", 0},
		"hidden":      {&httplock.Transport{HideHeld: true}, "POST", 1, "423 urn:interlock:problem:held", 2 * time.Second},
		"tried again": {&httplock.Transport{HideHeld: true, RetryHeld: true, Tries: 2}, "POST", 2, "423 urn:interlock:problem:held", 5 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				testkit.LogTo(t)
				store := memstore.New()
				gateway, ledger := testkit.LockerOn(t, store), testkit.LockerOn(t, store)
				mux := http.NewServeMux()
				rule := core.Serialize(ledger, "account/{id}", core.Wait(2*time.Second))
				mux.Handle("/accounts/{id}", httplock.Guard(rule)(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
					t.Error("the service ran beside its caller")
				})))
				to := &toHandler{handler: mux}
				c.client.Base = to
				lease, err := gateway.Lock(t.Context(), "account/42")
				if err != nil {
					t.Fatal(err)
				}
				defer func() { _ = lease.Release(t.Context()) }()
				r, err := http.NewRequestWithContext(lease.Context(), c.method, "http://ledger/accounts/42", nil)
				if err != nil {
					t.Fatal(err)
				}
				begin := time.Now()
				res, err := c.client.RoundTrip(r)
				if err != nil {
					t.Fatal(err)
				}
				took := time.Since(begin)
				b, _ := io.ReadAll(res.Body)
				_ = res.Body.Close()
				status, kind, _ := strings.Cut(c.body, " ")
				if !strings.HasPrefix(res.Status, status) || !strings.Contains(string(b), `"`+kind+`"`) || to.sent != c.sent ||
					took < c.took || took > c.took+time.Second {
					t.Errorf("%s %s after %v and %d tries; want %s after %v and %d", res.Status, b, took, to.sent, c.body, c.took, c.sent)
				}
				if r.Header.Get(core.HeldHeader) != "" {
					t.Error("the request of the caller was changed")
				}
			})
		})
	}
}

// A service in between answers 502 to a refusal that its own caller causes. Each further try of the first service would
// hold its lock for longer, and end the same.
func TestARequestIsNotRepeatedWhereAServiceFurtherInWantsTheLockOfItsCaller(t *testing.T) {
	layers := map[string]func(*testing.T) func(http.Handler) http.Handler{
		"relays": func(*testing.T) func(http.Handler) http.Handler { return httplock.Guard(core.Relay()) },
		"is idempotent": func(t *testing.T) func(http.Handler) http.Handler {
			return httplock.Idempotent(testkit.Engine(t))
		},
	}
	for name, layer := range layers {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				testkit.LogTo(t)
				store := memstore.New()
				gateway, ledger := testkit.LockerOn(t, store), testkit.LockerOn(t, store)
				mux := http.NewServeMux()
				mux.Handle("/accounts/{id}", httplock.Guard(core.Serialize(ledger, "account/{id}"))(http.NotFoundHandler()))
				between := http.NewServeMux()
				between.Handle("/pay", layer(t)(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					out, err := http.NewRequestWithContext(r.Context(), http.MethodPost, "http://ledger/accounts/42", nil)
					if err != nil {
						t.Error(err)
						return
					}
					res, err := (&httplock.Transport{Base: &toHandler{handler: mux}}).RoundTrip(out)
					if err == nil {
						_ = res.Body.Close()
					}
					http.Error(w, "the ledger does not answer", http.StatusBadGateway)
				})))
				to := &toHandler{handler: between}
				lease, err := gateway.Lock(t.Context(), "account/42")
				if err != nil {
					t.Fatal(err)
				}
				defer func() { _ = lease.Release(t.Context()) }()
				r, err := http.NewRequestWithContext(lease.Context(), http.MethodPost, "http://payments/pay", nil)
				if err != nil {
					t.Fatal(err)
				}
				begin := time.Now()
				res, err := (&httplock.Transport{Base: to}).RoundTrip(r)
				if err == nil {
					_ = res.Body.Close()
				}
				var failure *idempotency.RequestError
				if !errors.As(err, &failure) || failure.Reason != reason.HeldByCaller || !errors.Is(err, core.ErrHeldByCaller) ||
					!errors.Is(err, idempotency.ErrOutcomeUnknown) || to.sent != 1 || time.Since(begin) > time.Second {
					t.Errorf("%v, %v after %d tries and %v; want an unknown outcome held by the caller, after one try", res, err, to.sent, time.Since(begin))
				}
			})
		})
	}
}
