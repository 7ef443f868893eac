package httplock_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/idempotency"
	"github.com/interlock-go/interlock/core/memstore"
	"github.com/interlock-go/interlock/httplock"
	"github.com/interlock-go/interlock/internal/testkit"
)

// ledger is a service that owns accounts and locks none.
func ledger(latest int64) (h http.Handler, sent *[]string) {
	claim := func(_ context.Context, fences []core.Fence) error {
		if fences[0].Token < latest {
			return core.ErrLost
		}
		latest = fences[0].Token
		return nil
	}
	sent = new([]string)
	mux := http.NewServeMux()
	rule := core.Fenced("account/{id}", claim)
	mux.Handle("/accounts/{id}", httplock.Guard(rule)(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		*sent = append(*sent, fmt.Sprint(core.Fences(r.Context())))
	})))
	return mux, sent
}

// A service that owns a resource refuses what an outdated holder sends, and no try changes that.
func TestTheTokensOfTheCallerAreSentAndAnOutdatedOneIsNotTriedAgain(t *testing.T) {
	for _, method := range []string{"POST", "GET"} {
		t.Run(method, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				testkit.LogTo(t)
				gateway := testkit.LockerOn(t, memstore.New())
				h, seen := ledger(0)
				to := &toHandler{handler: h}
				client := &httplock.Transport{Base: to, SendFences: true}
				lease, err := gateway.Lock(t.Context(), "account/42")
				if err != nil {
					t.Fatal(err)
				}
				defer func() { _ = lease.Release(t.Context()) }()
				call := func(client *httplock.Transport, change func(*http.Request)) string {
					t.Helper()
					to.sent = 0
					r, err := http.NewRequestWithContext(lease.Context(), method, "http://ledger/accounts/42", nil)
					if err != nil {
						t.Fatal(err)
					}
					if change != nil {
						change(r)
					}
					before := len(r.Header)
					res, err := client.RoundTrip(r)
					if err != nil {
						t.Fatal(err)
					}
					b, _ := io.ReadAll(res.Body)
					_ = res.Body.Close()
					if len(r.Header) != before {
						t.Error("the request of the caller was changed")
					}
					_, kind, _ := strings.Cut(string(b), "urn:interlock:problem:")
					kind, _, _ = strings.Cut(kind, `"`)
					return fmt.Sprint(res.StatusCode, " ", kind, " after ", to.sent)
				}
				want := func(got, want string) {
					t.Helper()
					if got != want {
						t.Errorf("%s; want %s", got, want)
					}
				}
				want(call(client, nil), "200  after 1")
				want(fmt.Sprint(*seen), fmt.Sprintf("[[{account/42 %d}]]", lease.Token()))
				want(call(&httplock.Transport{Base: to}, nil), "428 token-missing after 1")
				want(call(client, func(r *http.Request) { r.Header.Set(core.FencesHeader, "account/42=1") }), "412 stale-token after 1")
				want(call(client, func(r *http.Request) { r.Header.Set(core.FencesHeader, "account/42=?") }), "400 token-malformed after 1")
				// http.Client sends the same after a redirect, which may lead to a server of others.
				want(call(client, func(r *http.Request) { r.Response = &http.Response{} }), "428 token-missing after 1")
				h, _ = ledger(lease.Token() + 1)
				to.handler = h
				want(call(client, nil), "412 stale-token after 1")
			})
		})
	}
}

func TestARequestUnderMoreLocksThanFitIsNotSent(t *testing.T) {
	for _, method := range []string{"POST", "GET"} {
		synctest.Test(t, func(t *testing.T) {
			gateway := testkit.LockerOn(t, memstore.New())
			var keys []string
			for i := range 200 {
				keys = append(keys, fmt.Sprintf("account/%d", i))
			}
			lease, err := gateway.LockAll(t.Context(), keys)
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = lease.Release(t.Context()) }()
			to := &toHandler{}
			r, err := http.NewRequestWithContext(lease.Context(), method, "http://ledger/accounts/42", strings.NewReader("body"))
			if err != nil {
				t.Fatal(err)
			}
			res, err := (&httplock.Transport{Base: to, SendFences: true}).RoundTrip(r)
			if res != nil {
				_ = res.Body.Close()
			}
			if !errors.Is(err, core.ErrConfig) || errors.Is(err, idempotency.ErrOutcomeUnknown) || to.sent > 0 {
				t.Errorf("%v, sent %d times; want %v, and nothing sent", err, to.sent, core.ErrConfig)
			}
		})
	}
}

// A refused request has not run: its key stays free for the request under a new lock.
func TestAnIdempotentRequestOfAnOutdatedHolderKeepsNoRecord(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		testkit.LogTo(t)
		store := memstore.New()
		gateway := testkit.LockerOn(t, store)
		engine, err := idempotency.New(store, idempotency.Global())
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = engine.Close(t.Context()) }()
		latest := int64(0)
		rule := core.Fenced("account/{id}", func(_ context.Context, fences []core.Fence) error {
			if fences[0].Token < latest {
				return core.ErrLost
			}
			return nil
		})
		runs := 0
		pay := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { runs++; w.WriteHeader(http.StatusCreated) })
		for name, h := range map[string]http.Handler{
			"under":  httplock.Idempotent(engine.With(idempotency.Under(rule), idempotency.Name("under")))(pay),
			"inside": httplock.Idempotent(engine.With(idempotency.Name("inside")))(httplock.Guard(rule)(pay)),
			"around": httplock.Guard(rule)(httplock.Idempotent(engine.With(idempotency.Name("around")))(pay)),
		} {
			runs, latest = 0, 1<<60
			mux := http.NewServeMux()
			mux.Handle("/"+name+"/{id}", h)
			client := &httplock.Transport{Base: &toHandler{handler: mux}, SendFences: true}
			pay := func() int {
				t.Helper()
				lease, err := gateway.Lock(t.Context(), "account/42")
				if err != nil {
					t.Fatal(err)
				}
				defer func() { _ = lease.Release(t.Context()) }()
				r, err := http.NewRequestWithContext(lease.Context(), http.MethodPost, "http://ledger/"+name+"/42", nil)
				if err != nil {
					t.Fatal(err)
				}
				r.Header.Set(idempotency.KeyHeader, "order-17-"+name)
				res, err := client.RoundTrip(r)
				var request *idempotency.RequestError
				if errors.As(err, &request) { // the caller may have sent the key before
					return request.Status
				}
				if err != nil {
					t.Fatal(err)
				}
				_ = res.Body.Close()
				return res.StatusCode
			}
			if status := pay(); status != http.StatusPreconditionFailed || runs != 0 {
				t.Errorf("%s: status %d after %d runs; want 412 after none", name, status, runs)
			}
			latest = 0
			for range 2 {
				if status := pay(); status != http.StatusCreated || runs != 1 {
					t.Errorf("%s: status %d after %d runs; want 201 after one", name, status, runs)
				}
			}
		}
	})
}
