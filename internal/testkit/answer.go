// Package testkit has what tests of several packages share: lockers, engines, answers and waits with a bound.
package testkit

import (
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/interlock-go/interlock/core/idempotency"
)

// Serve starts a server for a handler.
func Serve(tb testing.TB, h http.Handler) *httptest.Server {
	tb.Helper()
	srv := httptest.NewServer(h)
	srv.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, 0) // panics are on purpose
	tb.Cleanup(srv.Close)
	return srv
}

// Answer is a response of HTTP that was read to its end.
type Answer struct {
	Status          int
	Header, Trailer http.Header
	Body            string
}

// Read reads a response to its end.
func Read(resp *http.Response) (Answer, error) {
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(resp.Body)
	return Answer{resp.StatusCode, resp.Header, resp.Trailer, string(body)}, err
}

// Do sends a request without a body, unless change gives it one.
func Do(tb testing.TB, srv *httptest.Server, method, path string, change ...func(*http.Request)) Answer {
	tb.Helper()
	ctx, cancel := context.WithTimeout(tb.Context(), Patience)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, method, srv.URL+path, http.NoBody)
	if err != nil {
		tb.Fatal(err)
	}
	for _, f := range change {
		f(req)
	}
	resp, err := srv.Client().Do(req)
	if err != nil {
		tb.Fatal(err)
	}
	a, err := Read(resp)
	if err != nil {
		tb.Fatal(err)
	}
	return a
}

// Post sends a request with the idempotency key k.
func Post(tb testing.TB, srv *httptest.Server, path string, change ...func(*http.Request)) Answer {
	tb.Helper()
	return Do(tb, srv, http.MethodPost, path, append([]func(*http.Request){WithHeader("Idempotency-Key", "k")}, change...)...)
}

// WithHeader sets a field of the header of a request.
func WithHeader(name, value string) func(*http.Request) {
	return func(r *http.Request) { r.Header.Set(name, value) }
}

// WithBody gives a request a body of a type; "" for none that is named.
func WithBody(contentType, body string) func(*http.Request) {
	return func(r *http.Request) {
		if contentType != "" {
			r.Header.Set("Content-Type", contentType)
		}
		if body == "" { // a length of 0 with a body says that the length is unknown
			return
		}
		r.ContentLength = int64(len(body))
		r.GetBody = func() (io.ReadCloser, error) { return io.NopCloser(strings.NewReader(body)), nil }
		r.Body, _ = r.GetBody()
	}
}

// Problem is a refusal in the body of an answer.
type Problem struct {
	Type, Title, Detail string
	Status              int
	Reason              string `json:"-"`
}

// Problem returns the refusal that an answer is, with all its marks. An answer
// that lacks a mark is the handler's own.
func (a Answer) Problem() (p Problem, ok bool) {
	if a.Header.Get("Content-Type") != "application/problem+json" || json.Unmarshal([]byte(a.Body), &p) != nil {
		return Problem{}, false
	}
	p.Reason, ok = strings.CutPrefix(p.Type, "urn:interlock:problem:")
	return p, ok && p.Status == a.Status && p.Title == http.StatusText(a.Status) && p.Detail != "" &&
		a.Header.Get("Cache-Control") == "no-store"
}

// WantProblem holds a refusal against the table of statuses.
func (a Answer) WantProblem(tb testing.TB, status int, reason, retryAfter string) {
	tb.Helper()
	if p, ok := a.Problem(); !ok || a.Status != status || p.Reason != reason {
		tb.Errorf("%d %s, %v; want %d %s", a.Status, a.Body, a.Header, status, reason)
	}
	if got := a.Header.Get("Retry-After"); got != retryAfter {
		tb.Errorf("%s: Retry-After %q; want %q", reason, got, retryAfter)
	}
}

// Want compares any other answer with the expected one.
func (a Answer) Want(tb testing.TB, status int, body string) {
	tb.Helper()
	if a.Status != status || a.Body != body {
		tb.Errorf("%d %q; want %d %q", a.Status, a.Body, status, body)
	}
}

// WantOwn compares an answer of the handler with the expected one.
func (a Answer) WantOwn(tb testing.TB, status int, body string) {
	tb.Helper()
	a.Want(tb, status, body)
	if a.Header.Get(idempotency.ReplayedHeader) != "" {
		tb.Errorf("%d %q is a replay", a.Status, a.Body)
	}
}

// WantReplay compares an answer with the stored one.
func (a Answer) WantReplay(tb testing.TB, status int, body string) {
	tb.Helper()
	a.Want(tb, status, body)
	if a.Header.Get(idempotency.ReplayedHeader) != "true" {
		tb.Errorf("%d %q is no replay", a.Status, a.Body)
	}
}
