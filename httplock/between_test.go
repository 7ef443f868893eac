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

// post sends a request under a context, and returns its response with the body read.
func post(ctx context.Context, client *httplock.Transport, url string) (res *http.Response, body string, err error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, url, strings.NewReader("{}"))
	if err != nil {
		return nil, "", err
	}
	if res, err = client.RoundTrip(r); err != nil {
		return nil, "", err
	}
	b, err := io.ReadAll(res.Body)
	_ = res.Body.Close()
	return res, string(b), err
}

// elsewhere is a handler of another process: it has nothing of its caller's context.
type elsewhere struct {
	handler http.Handler
	sent    int
}

func (e *elsewhere) RoundTrip(r *http.Request) (*http.Response, error) {
	e.sent++
	w := httptest.NewRecorder()
	e.handler.ServeHTTP(w, r.Clone(context.Background()))
	return w.Result(), nil
}

// Three services and one lock: the first holds it, the second holds nothing, and the third wants
// it. With a second service that forgets its caller, the third waits for the first.
func TestAServiceInBetweenPassesTheLocksOfItsCallerOn(t *testing.T) {
	claim := func(context.Context, []core.Fence) error { return nil }
	for name, between := range map[string]func(*idempotency.Engine) func(http.Handler) http.Handler{
		"relay": func(*idempotency.Engine) func(http.Handler) http.Handler { return httplock.Guard(core.Relay()) },
		"fenced": func(*idempotency.Engine) func(http.Handler) http.Handler {
			return httplock.Guard(core.Fenced("order/7", claim, core.AllowUnfenced()))
		},
		"idempotent": func(e *idempotency.Engine) func(http.Handler) http.Handler { return httplock.Idempotent(e) },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				testkit.LogTo(t)
				store := memstore.New()
				gateway, ledger := testkit.LockerOn(t, store), testkit.LockerOn(t, store)
				engine, err := idempotency.New(store, idempotency.Global(), idempotency.Service("between"))
				if err != nil {
					t.Fatal(err)
				}
				defer func() { _ = engine.Close(context.Background()) }()
				third := &elsewhere{handler: httplock.Guard(core.Serialize(ledger, "account/42"))(
					http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
						t.Error("the third service ran while the first held the lock")
					}))}
				second := &elsewhere{handler: between(engine)(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					res, _, err := post(r.Context(), &httplock.Transport{Base: third}, "http://ledger/")
					var failed *idempotency.RequestError
					switch {
					case err == nil && res.Header.Get(idempotency.ResultHeader) == string(reason.HeldByCaller):
					case errors.Is(err, core.ErrHeldByCaller) && errors.As(err, &failed) && failed.Reason == reason.HeldByCaller:
					default:
						t.Errorf("%v, %v; want a refusal that names its reason", res, err)
					}
					w.WriteHeader(http.StatusConflict)
				}))}
				lease, err := gateway.Lock(t.Context(), "account/42")
				if err != nil {
					t.Fatal(err)
				}
				begin := time.Now()
				res, body, err := post(lease.Context(), &httplock.Transport{Base: second}, "http://between/")
				if took := time.Since(begin); err != nil || res.StatusCode != http.StatusConflict || took != 0 || second.sent != 1 || third.sent != 1 {
					t.Errorf("%v %s, %v after %v and %d, %d tries; want 409 at once, each request sent once", res, body, err, took, second.sent, third.sent)
				}
				if err := lease.Release(t.Context()); err != nil {
					t.Error(err)
				}
			})
		})
	}
}

// All who wait for the permit of the caller would wait for each try.
func TestARequestForAPermitIsNotTriedAgainUnderAPermit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		testkit.LogTo(t)
		store := memstore.New()
		gateway, ledger := testkit.LockerOn(t, store), testkit.LockerOn(t, store)
		for _, c := range []struct {
			own, theirs string // permits of the caller, and of another one
			client      httplock.Transport
			status      int
			why         reason.Reason
			sent        int
		}{
			{"export/1", "export/2", httplock.Transport{}, http.StatusConflict, reason.HeldByCaller, 1},
			{"export/2", "export/1", httplock.Transport{}, http.StatusTooManyRequests, reason.Full, 1},
			{"export/2", "export/1", httplock.Transport{RetryHeld: true, Tries: 3}, http.StatusTooManyRequests, reason.Full, 3},
		} {
			other, err := gateway.Lock(t.Context(), c.theirs, core.Permits(1))
			if err != nil {
				t.Fatal(err)
			}
			lease, err := gateway.Lock(t.Context(), c.own, core.Permits(1))
			if err != nil {
				t.Fatal(err)
			}
			base := &elsewhere{handler: httplock.Guard(core.AtMost(ledger, 1, "export/1", core.Wait(time.Second)))(
				http.HandlerFunc(func(http.ResponseWriter, *http.Request) { t.Error("the handler ran") }))}
			c.client.Base = base
			res, body, err := post(lease.Context(), &c.client, "http://exports/")
			if err != nil || res.StatusCode != c.status || res.Header.Get(idempotency.ResultHeader) != string(c.why) || base.sent != c.sent {
				t.Errorf("%+v: %v %s, %v, sent %d times", c, res, body, err, base.sent)
			}
			_ = lease.Release(t.Context())
			_ = other.Release(t.Context())
		}
	})
}
