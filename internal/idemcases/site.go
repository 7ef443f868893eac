package idemcases

import (
	"context"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"

	"github.com/interlock-go/interlock/core/adapter/adaptertest"
	"github.com/interlock-go/interlock/core/idempotency"
	"github.com/interlock-go/interlock/internal/testkit"
)

// site is an endpoint for cases that see the whole of requests and responses.
type site struct {
	f   *fixture
	srv *httptest.Server
	*adaptertest.Service
}

// site serves a handler. in front changes the header as middleware in front.
func (f *fixture) site(e *idempotency.Engine, h http.HandlerFunc, inFront ...func(http.Header)) *site {
	f.Helper()
	return f.behind(func(w http.ResponseWriter, _ *http.Request) {
		for _, set := range inFront {
			set(w.Header())
		}
	}, e, h)
}

// behind serves a handler inside middleware of net/http.
func (f *fixture) behind(front http.HandlerFunc, e *idempotency.Engine, h http.HandlerFunc) *site {
	f.Helper()
	s := &adaptertest.Service{InFront: front, Route: "/accounts/{id}/payments", Layers: []adaptertest.Layer{{Idempotent: e}}}
	s.Handler = func(ctx context.Context, call *adaptertest.Call) error {
		number, err := f.ledger.enter(ctx)
		if err != nil {
			f.Errorf("the handler cannot have its effect: %v", err)
		}
		f.ledger.answer(number, keptStatus(0, call.R.Header.Get(idempotency.KeyHeader)))
		h(call.W, call.R)
		return nil
	}
	return &site{f, f.Start(f, s).(*adaptertest.HTTPClient).Server, s}
}

// send sends a request with the key k, if change does not say otherwise.
func (s *site) send(method, path, body string, change ...func(*http.Request)) testkit.Answer {
	s.f.Helper()
	var key string
	a := testkit.Do(s.f, s.srv, method, path, append(append([]func(*http.Request){
		testkit.WithHeader(idempotency.KeyHeader, "k"), testkit.WithHeader("Authorization", "alice"), testkit.WithBody("", body),
	}, change...), func(r *http.Request) { key = r.Header.Get(idempotency.KeyHeader) })...)
	if a.Header.Get("Content-Type") != "application/problem+json" {
		s.f.ledger.tell(key, "", keptStatus(a.Status, key))
	}
	return a
}

// key gives a request another key.
func key(of ...any) func(*http.Request) {
	return testkit.WithHeader("Idempotency-Key", fmt.Sprint(of...))
}

const path = "/accounts/42/payments"

func (s *site) post() testkit.Answer { s.f.Helper(); return s.send(http.MethodPost, path, "") }

// twice sends the same request twice, holds status, body and trailers of the
// replay against the first, and returns both. Of the handler there is one run.
func (s *site) twice(status int, body string) (first, second testkit.Answer) {
	s.f.Helper()
	first, second = s.post(), s.post()
	first.Want(s.f, status, body)
	second.Want(s.f, status, body)
	if first.Header.Get("Idempotent-Replayed") != "" || second.Header.Get("Idempotent-Replayed") != "true" {
		s.f.Errorf("Idempotent-Replayed %q and %q", first.Header.Get("Idempotent-Replayed"), second.Header.Get("Idempotent-Replayed"))
	}
	if fmt.Sprint(first.Trailer) != fmt.Sprint(second.Trailer) {
		s.f.Errorf("trailers %v and %v", first.Trailer, second.Trailer)
	}
	if n := s.Runs(); n != 1 {
		s.f.Errorf("the handler ran %d times", n)
	}
	return first, second
}

// differ lists the header fields that two responses do not share.
func differ(a, b http.Header) (names []string) {
	for name := range maps.Keys(a) {
		if !slices.Equal(a[name], b[name]) {
			names = append(names, name)
		}
	}
	for name := range b {
		if _, has := a[name]; !has {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return slices.DeleteFunc(names, func(n string) bool { return n == "Date" })
}

func (f *fixture) wantNames(what string, got []string, want ...string) {
	f.Helper()
	if !slices.Equal(got, want) {
		f.Errorf("%s: %q; want %q", what, got, want)
	}
}

// text writes a body, also where the framework has replaced the writer.
func text(w io.Writer, s string) { _, _ = io.WriteString(w, s) }
