package conformance_test

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/adapter/adaptertest"
	"github.com/interlock-go/interlock/core/idempotency"
	"github.com/interlock-go/interlock/core/memstore"
	"github.com/interlock-go/interlock/core/reason"
	"github.com/interlock-go/interlock/internal/frameworks/all"
	"github.com/interlock-go/interlock/internal/testkit"
)

// shop is an endpoint of a merchant, under a profile.
type shop struct {
	*testing.T
	store  *memstore.Store
	server *httptest.Server
	status atomic.Int64  // of the answers of the handler
	runs   atomic.Int64  // of the handler
	inside chan struct{} // the handler has begun
	leave  chan struct{} // nil: the handler ends at once
}

// overShops runs a rule over all frameworks of HTTP.
func overShops(t *testing.T, p reason.Profile, rule string, run func(s *shop)) {
	t.Run(rule, func(t *testing.T) {
		for _, f := range all.Frameworks {
			if f.HTTP {
				t.Run(f.Label, func(t *testing.T) { run(openShop(t, f, p)) })
			}
		}
	})
}

func openShop(t *testing.T, f adaptertest.Framework, p reason.Profile) *shop {
	s := &shop{T: t, store: memstore.New(), inside: make(chan struct{}, 1)}
	s.status.Store(http.StatusCreated)
	who := idempotency.Scope(func(_ context.Context, r core.Request) (string, error) {
		return strings.Join(r.Header("Authorization"), ""), nil
	})
	engine := testkit.EngineOn(t, s.store, who, idempotency.Profile(p))
	service := &adaptertest.Service{
		Route:  "/checkout_sessions/{id}",
		Layers: []adaptertest.Layer{{Idempotent: engine}},
		Handler: func(ctx context.Context, call *adaptertest.Call) error {
			n := s.runs.Add(1)
			if s.leave != nil {
				s.inside <- struct{}{}
				if err := testkit.Meet(ctx, s.leave); err != nil {
					return err
				}
			}
			call.W.Header().Set("Content-Type", "application/json")
			call.W.WriteHeader(int(s.status.Load()))
			return call.Send(fmt.Sprintf(`{"run":%d}`, n))
		},
	}
	s.server = f.Start(t, service).(*adaptertest.HTTPClient).Server
	return s
}

// send sends a request. An empty key counts as no key.
func (s *shop) send(method, path, key, body string) testkit.Answer {
	s.Helper()
	change := []func(*http.Request){
		testkit.WithHeader("Authorization", "Bearer agent"), testkit.WithBody("application/json", body),
	}
	if key != "" {
		change = append(change, testkit.WithHeader("Idempotency-Key", key))
	}
	return testkit.Do(s, s.server, method, path, change...)
}

func (s *shop) post(key, body string) testkit.Answer {
	s.Helper()
	return s.send(http.MethodPost, "/checkout_sessions/1", key, body)
}

// want holds an answer of the handler, or its replay, against its run.
func (s *shop) want(what string, a testkit.Answer, run int, replayed string) {
	s.Helper()
	if a.Status != int(s.status.Load()) || a.Body != fmt.Sprintf(`{"run":%d}`, run) || a.Header.Get("Idempotent-Replayed") != replayed {
		s.Errorf("%s: %+v; want run %d, replayed %q", what, a, run, replayed)
	}
}

// wantError holds a refusal against all members of its body.
func (s *shop) wantError(a testkit.Answer, status int, retry string, want map[string]string) {
	s.Helper()
	var got map[string]string
	if err := json.Unmarshal([]byte(a.Body), &got); err != nil {
		s.Errorf("%+v: %v", a, err)
	}
	if a.Status != status || a.Header.Get("Content-Type") != "application/json" || a.Header.Get("Retry-After") != retry || !maps.Equal(got, want) {
		s.Errorf("%+v; want %d, Retry-After %q, %v", a, status, retry, want)
	}
}

// inFlight sends a duplicate while the first request is carried out.
func (s *shop) inFlight() (duplicate testkit.Answer) {
	s.leave = make(chan struct{})
	first := make(chan testkit.Answer, 1)
	go func() { first <- s.post("k", `{}`) }()
	testkit.Receive(s, s.inside, "the first request")
	duplicate = s.post("k", `{}`)
	close(s.leave)
	s.want("first", testkit.Receive(s, first, "the first answer"), 1, "")
	return duplicate
}

// The rules of the RFC "Agentic Checkout" of the Agentic Commerce Protocol, at API version
// 2026-04-17; the numbers are its sections.
func TestTheAgenticCommerceProtocol(t *testing.T) {
	rule := func(name string, run func(s *shop)) { overShops(t, reason.AgenticCommerce, name, run) }
	refusal := func(code string, why reason.Reason) map[string]string {
		return map[string]string{"type": "invalid_request", "code": code, "message": why.Text()}
	}

	rule("3.1 Idempotency-Key is echoed on all POST responses", func(s *shop) {
		answers := map[string]testkit.Answer{
			"fresh": s.post("k", `{}`), "replayed": s.post("k", `{}`), "refused": s.post("k", `{"a":1}`),
		}
		for what, a := range answers {
			if got := a.Header.Values("Idempotency-Key"); !slices.Equal(got, []string{"k"}) {
				s.Errorf("%s: %q", what, got)
			}
		}
	})
	rule("6.1 a POST without a key is rejected", func(s *shop) {
		s.wantError(s.post("", `{}`), 400, "", refusal("idempotency_key_required", reason.KeyMissing))
		if n := s.runs.Load(); n != 0 {
			s.Errorf("the handler ran %d times", n)
		}
	})
	rule("6.1 a key on another endpoint is treated independently", func(s *shop) {
		s.want("one session", s.post("k", `{}`), 1, "")
		s.want("another", s.send(http.MethodPost, "/checkout_sessions/2", "k", `{}`), 2, "")
		s.want("the first again", s.post("k", `{}`), 1, "true")
	})
	rule("6.2 bodies are compared as JSON", func(s *shop) {
		s.want("first", s.post("k", `{"a":1.0,"b":"x"}`), 1, "")
		s.want("another order", s.post("k", `{ "b":"x", "a":1 }`), 1, "true")
		s.wantError(s.post("k", `{"a":1,"b":"x","c":null}`), 422, "", refusal("idempotency_conflict", reason.KeyReused))
	})
	rule("6.3 the original response is returned with the same status", func(s *shop) {
		s.status.Store(http.StatusUnprocessableEntity)
		s.want("first", s.post("k", `{}`), 1, "")
		s.want("again", s.post("k", `{}`), 1, "true")
	})
	rule("6.4 another body is a conflict", func(s *shop) {
		s.want("first", s.post("k", `{}`), 1, "")
		s.wantError(s.post("k", `{"a":1}`), 422, "", refusal("idempotency_conflict", reason.KeyReused))
	})
	rule("6.4 a request in flight", func(s *shop) {
		s.wantError(s.inFlight(), 409, "1", refusal("idempotency_in_flight", reason.InFlight))
	})
	rule("6.5 a retry after a 5xx is a fresh request", func(s *shop) {
		s.status.Store(http.StatusBadGateway)
		s.want("first", s.post("k", `{}`), 1, "")
		s.status.Store(http.StatusCreated)
		s.want("again", s.post("k", `{}`), 2, "")
	})
	rule("an error without a code of the protocol has a type of the protocol", func(s *shop) {
		s.store.Intercept(func(memstore.Request) memstore.Fault { return memstore.Unreachable })
		s.wantError(s.post("k", `{}`), 503, "1", map[string]string{
			"type": "service_unavailable", "code": "idempotency_unavailable", "message": reason.NoRecord.Text(),
		})
	})
}

// The rules of the Universal Commerce Protocol: the binding "Checkout REST", "Specific Header
// Requirements", and "Message signatures", "Replay Protection", as of 2026-08-22. The first
// two are the cases of idempotency_test.py of its conformance tests.
func TestTheUniversalCommerceProtocol(t *testing.T) {
	rule := func(name string, run func(s *shop)) { overShops(t, reason.UniversalCommerce, name, run) }
	refusal := func(code string, why reason.Reason) map[string]string {
		return map[string]string{"code": code, "content": why.Text()}
	}

	for _, method := range []string{http.MethodPost, http.MethodPut} {
		rule("duplicate and conflict by "+method, func(s *shop) {
			send := func(body string) testkit.Answer {
				s.Helper()
				return s.send(method, "/checkout_sessions/1", "k", body)
			}
			s.want("first", send(`{"currency":"USD"}`), 1, "")
			s.want("duplicate", send(`{"currency":"USD"}`), 1, "true")
			s.wantError(send(`{"currency":"EUR"}`), 409, "", refusal("idempotency_conflict", reason.KeyReused))
		})
	}
	rule("a key is unique per operation", func(s *shop) {
		s.want("create", s.post("k", `{}`), 1, "")
		s.want("update", s.send(http.MethodPut, "/checkout_sessions/1", "k", `{}`), 2, "")
		s.want("create again", s.post("k", `{}`), 1, "true")
	})
	rule("payloads match by their bytes", func(s *shop) {
		s.want("first", s.post("k", `{"a":1}`), 1, "")
		s.wantError(s.post("k", `{"a": 1}`), 409, "", refusal("idempotency_conflict", reason.KeyReused))
	})
	rule("on storage failure the request is rejected with 503", func(s *shop) {
		s.store.Intercept(func(memstore.Request) memstore.Fault { return memstore.Unreachable })
		s.wantError(s.post("k", `{}`), 503, "1", refusal("idempotency_unavailable", reason.NoRecord))
		if n := s.runs.Load(); n != 0 {
			s.Errorf("the handler ran %d times", n)
		}
	})
	rule("409 is for another payload only, so a request in flight gets 503", func(s *shop) {
		s.wantError(s.inFlight(), 503, "1", refusal("idempotency_in_flight", reason.InFlight))
	})
}
