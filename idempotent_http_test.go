package interlock_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/idempotency"
	"github.com/interlock-go/interlock/internal/adaptertest"
)

// site is an endpoint whose cases see the whole of requests and responses.
type site struct {
	f   *fixture
	srv *httptest.Server
	*adaptertest.Service
}

// site serves a handler. in front is what middleware in front does to the
// header.
func (f *fixture) site(e *idempotency.Engine, h http.HandlerFunc, inFront ...func(http.Header)) *site {
	f.Helper()
	return f.behind(func(w http.ResponseWriter, _ *http.Request) {
		for _, set := range inFront {
			set(w.Header())
		}
	}, e, h)
}

// behind serves a handler behind middleware of net/http.
func (f *fixture) behind(front http.HandlerFunc, e *idempotency.Engine, h http.HandlerFunc) *site {
	f.Helper()
	return f.siteOf(&adaptertest.Service{InFront: front}, e, h)
}

// siteOf serves a handler as a service says.
func (f *fixture) siteOf(s *adaptertest.Service, e *idempotency.Engine, h http.HandlerFunc) *site {
	f.Helper()
	s.Route, s.Layers = "/accounts/{id}/payments", []adaptertest.Layer{{Idempotent: e}}
	s.Handler = func(_ context.Context, call *adaptertest.Call) error { h(call.W, call.R); return nil }
	return &site{f, f.start(f, s).(*adaptertest.HTTPClient).Server, s}
}

// send sends a request with the key k, if change does not say otherwise.
func (s *site) send(method, path, body string, change ...func(*http.Request)) adaptertest.Answer {
	s.f.Helper()
	return adaptertest.Do(s.f, s.srv, method, path, append([]func(*http.Request){
		adaptertest.WithHeader("Idempotency-Key", "k"), adaptertest.WithHeader("Authorization", "alice"), adaptertest.WithBody("", body),
	}, change...)...)
}

// key gives a request another key.
func key(of ...any) func(*http.Request) {
	return adaptertest.WithHeader("Idempotency-Key", fmt.Sprint(of...))
}

const path = "/accounts/42/payments"

func (s *site) post() adaptertest.Answer { s.f.Helper(); return s.send(http.MethodPost, path, "") }

// twice sends the same request twice, holds status, body and trailers of the
// replay against the first, and returns both. Of the handler there is one run.
func (s *site) twice(status int, body string) (first, second adaptertest.Answer) {
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

// text writes a body, whatever the framework has made of the writer.
func text(w io.Writer, s string) { _, _ = io.WriteString(w, s) }

// responseCases are those of answers of HTTP and their replays.
var responseCases = []row{
	{name: "created, written and flushed", http: true, run: func(f *fixture) {
		s := f.site(f.engine(), func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "text/plain")
			w.WriteHeader(http.StatusCreated)
			text(w, "a")
			if err := http.NewResponseController(w).Flush(); err != nil {
				f.Error(err)
			}
			w.Header().Set("X-Late", "too late")
			text(w, "b")
		})
		first, second := s.twice(http.StatusCreated, "ab")
		f.wantNames("differing", differ(first.Header, second.Header), "Idempotent-Replayed")
		if first.Header.Get("X-Late") != "" {
			f.Error("a header came after the header")
		}
	}},
	{name: "flushed before a status", http: true, run: func(f *fixture) {
		s := f.site(f.engine(), func(w http.ResponseWriter, _ *http.Request) {
			w.(http.Flusher).Flush()
			text(w, "a")
		})
		s.twice(http.StatusOK, "a")
	}},
	{name: "nothing leaves before it is stored", http: true, run: func(f *fixture) {
		g, engine := adaptertest.NewGate(), f.engine()
		s := f.site(engine, func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(http.StatusCreated)
			text(w, strings.Repeat("x", 8<<10)) // more than net/http keeps
			w.(http.Flusher).Flush()
			g.Pass()
		})
		answered := make(chan struct{})
		go func() { defer close(answered); s.post() }()
		f.wait("inside", g.Inside)
		select {
		case <-answered:
			f.Error("answered before the handler was done")
		default:
		}
		s.post().WantProblem(f, 409, string(core.ReasonInFlight), "1")
		close(g.Leave)
		f.wait("answered", answered)
		s.twiceMore(http.StatusCreated)
	}},
	{name: "headers that belong to one response", http: true, run: func(f *fixture) {
		s := f.site(f.engine(), func(w http.ResponseWriter, _ *http.Request) {
			h := w.Header()
			h.Set("Content-Type", "application/json")
			h.Set("Location", "/payments/1")
			h.Set("ETag", `"1"`)
			h.Add("Set-Cookie", "session=secret")
			h.Set("Connection", "X-Hop, keep-alive")
			h.Set("X-Hop", "1")
			h.Set("Keep-Alive", "timeout=5")
			h.Set("X-Request-Id", "1")
			h.Set("Traceparent", "00-1-2-01")
			h.Set("RateLimit-Remaining", "3")
			h.Set("Content-Length", "2")
			w.WriteHeader(http.StatusCreated)
			text(w, "{}")
		})
		first, second := s.twice(http.StatusCreated, "{}")
		f.wantNames("not replayed", differ(first.Header, second.Header), "Connection", "Idempotent-Replayed",
			"Keep-Alive", "Ratelimit-Remaining", "Set-Cookie", "Traceparent", "X-Hop", "X-Request-Id")
	}},
	{name: "an allow-list of headers", http: true, run: func(f *fixture) {
		s := f.site(f.engine(idempotency.ReplayHeaders("location", "RateLimit-Limit")), func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			w.Header().Set("Location", "/payments/1")
			w.Header().Set("X-Other", "1")
			w.Header().Set("RateLimit-Limit", "5")
			w.WriteHeader(http.StatusCreated)
		})
		first, second := s.twice(http.StatusCreated, "")
		f.wantNames("not replayed", differ(first.Header, second.Header), "Content-Type", "Idempotent-Replayed", "X-Other")
	}},
	{name: "headers with several values", http: true, run: func(f *fixture) {
		want := []string{"Accept, Accept-Encoding", "Origin"}
		s := f.site(f.engine(), func(w http.ResponseWriter, _ *http.Request) {
			w.Header()["Vary"] = want
			text(w, "a")
		})
		first, second := s.twice(http.StatusOK, "a")
		for _, got := range [][]string{first.Header["Vary"], second.Header["Vary"]} {
			f.wantNames("Vary", got, want...)
		}
	}},
	{name: "headers from in front", http: true, run: func(f *fixture) {
		var n int
		s := f.site(f.engine(), func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Add("Vary", "Accept")
			w.Header().Del("X-Powered-By")
			text(w, "a")
		}, func(h http.Header) {
			n++
			h.Set("Vary", "Origin")
			h.Set("X-Powered-By", "steam")
			h.Set("X-Front", fmt.Sprint(n))
		})
		first, second := s.twice(http.StatusOK, "a")
		for i, got := range []http.Header{first.Header, second.Header} {
			f.wantNames("Vary", got["Vary"], "Origin", "Accept")
			f.wantNames("X-Powered-By", got["X-Powered-By"])
			f.wantNames("X-Front", got["X-Front"], fmt.Sprint(i+1))
		}
	}},
	{name: "trailers", http: true, run: func(f *fixture) {
		s := f.site(f.engine(), func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Trailer", "X-Sum, X-None")
			w.WriteHeader(http.StatusOK)
			text(w, "a")
			w.Header().Set("X-Sum", "1")
			w.Header().Set(http.TrailerPrefix+"X-More", "2")
		})
		first, _ := s.twice(http.StatusOK, "a")
		if first.Trailer.Get("X-Sum") != "1" || first.Trailer.Get("X-More") != "2" {
			f.Errorf("trailers %v", first.Trailer)
		}
	}},
	{name: "trailers of an answer over the limit", http: true, run: func(f *fixture) {
		s := f.site(f.engine(idempotency.MaxResponse(3)), func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Trailer", "X-Sum")
			w.WriteHeader(http.StatusCreated)
			for range 3 {
				text(w, "ab")
				w.(http.Flusher).Flush()
			}
			w.Header().Set("X-Sum", "1")
		})
		a := s.post()
		a.Want(f, http.StatusCreated, "ababab")
		if a.Trailer.Get("X-Sum") != "1" {
			f.Errorf("trailers %v", a.Trailer)
		}
		s.post().WantProblem(f, 409, string(core.ReasonResponseUnavailable), "")
	}},
	{name: "no content", http: true, run: func(f *fixture) {
		s := f.site(f.engine(), func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(http.StatusNoContent)
			if _, err := w.Write([]byte("a")); !errors.Is(err, http.ErrBodyNotAllowed) {
				f.Errorf("a body of a 204: %v", err)
			}
		})
		first, second := s.twice(http.StatusNoContent, "")
		f.wantNames("differing", differ(first.Header, second.Header), "Idempotent-Replayed")
	}},
	{name: "an empty body", http: true, run: func(f *fixture) {
		s := f.site(f.engine(), func(http.ResponseWriter, *http.Request) {})
		first, second := s.twice(http.StatusOK, "")
		f.wantNames("differing", differ(first.Header, second.Header), "Idempotent-Replayed")
		if first.Header.Get("Content-Length") != "0" {
			f.Errorf("Content-Length %q", first.Header.Get("Content-Length"))
		}
	}},
	{name: "a redirect", http: true, run: func(f *fixture) {
		s := f.site(f.engine(), func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, "/payments/1", http.StatusSeeOther) })
		first, second := s.twice(http.StatusSeeOther, "")
		f.wantNames("differing", differ(first.Header, second.Header), "Idempotent-Replayed")
	}},
	{name: "safe methods pass", http: true, run: func(f *fixture) {
		s := f.site(f.engine(), func(w http.ResponseWriter, r *http.Request) {
			if err := idempotency.MarkEffect(r.Context()); err != nil {
				f.Error(err)
			}
			w.Header().Set("X-Method", r.Method)
			text(w, r.Method)
		})
		for _, method := range []string{http.MethodGet, http.MethodHead, http.MethodOptions} {
			want := method
			if method == http.MethodHead {
				want = ""
			}
			for range 2 {
				a := s.send(method, path, "", func(r *http.Request) { r.Header.Del("Idempotency-Key") })
				a.Want(f, http.StatusOK, want)
				if a.Header.Get("X-Method") != method || a.Header.Get("Idempotent-Replayed") != "" {
					f.Errorf("%v", a.Header)
				}
			}
		}
		if n := s.Runs(); n != 6 {
			f.Errorf("%d runs", n)
		}
		if n := f.records(); n != 0 {
			f.Errorf("%d records", n)
		}
	}},
	{name: "another query, method or path", http: true, run: func(f *fixture) {
		s := f.site(f.engine(), func(w http.ResponseWriter, _ *http.Request) { text(w, "a") })
		s.send(http.MethodPost, "/accounts/A/payments?dry=1", "b").Want(f, 200, "a")
		for _, other := range [][3]string{
			{http.MethodPost, "/accounts/A/payments?dry=2", "b"},
			{http.MethodPost, "/accounts/A/payments", "b"},
			{http.MethodPut, "/accounts/A/payments?dry=1", "b"},
			{http.MethodPost, "/accounts/B/payments?dry=1", "b"},
			{http.MethodPost, "/accounts/A/payments?dry=1", "c"},
			{http.MethodPost, "/accounts/A/payments?dry=1", ""},
		} {
			s.send(other[0], other[1], other[2]).WantProblem(f, 422, string(core.ReasonKeyReused), "")
		}
		s.send(http.MethodPost, "/accounts/%41/payments?dry=1", "b").Want(f, 200, "a")
		if n := s.Runs(); n != 1 {
			f.Errorf("%d runs", n)
		}
	}},
	{name: "an escaped slash is no slash", http: true, run: func(f *fixture) {
		s := f.site(f.engine(), func(w http.ResponseWriter, _ *http.Request) { text(w, "a") })
		s.send(http.MethodPost, "/accounts/a%252Fb/payments", "").Want(f, 200, "a")
		if a := s.send(http.MethodPost, "/accounts/a%2Fb/payments", ""); a.Status == 200 {
			f.Errorf("%d %s %v", a.Status, a.Body, a.Header)
		}
	}},
	{name: "the body is handed on", http: true, run: func(f *fixture) {
		body := strings.Repeat("0123456789", 10_000)
		s := f.site(f.engine(), func(w http.ResponseWriter, r *http.Request) {
			b, err := io.ReadAll(r.Body)
			if err != nil || string(b) != body {
				f.Errorf("%d bytes, %v", len(b), err)
			}
			if err := r.Body.Close(); err != nil {
				f.Error(err)
			}
			text(w, "a")
		})
		chunked := func(r *http.Request) { r.ContentLength = -1; r.Body = io.NopCloser(strings.NewReader(body)) }
		s.send(http.MethodPost, path, body).Want(f, 200, "a")
		s.send(http.MethodPost, path, body, chunked).Want(f, 200, "a") // the same request
		if n := s.Runs(); n != 1 {
			f.Errorf("%d runs", n)
		}
		other := key("l")
		s.send(http.MethodPost, path, body, chunked, other).Want(f, 200, "a")
	}},
	{name: "a chunked body over the limit", http: true, run: func(f *fixture) {
		s := f.site(f.engine(idempotency.MaxRequest(10)), func(w http.ResponseWriter, _ *http.Request) { text(w, "a") })
		chunked := func(r *http.Request) { r.ContentLength = -1 }
		s.send(http.MethodPost, path, "01234567890", chunked).WantProblem(f, 413, string(core.ReasonBodyTooLarge), "")
		s.send(http.MethodPost, path, "0123456789", chunked).Want(f, 200, "a")
	}},
	{name: "no connection is handed over", http: true, run: func(f *fixture) {
		s := f.site(f.engine(), func(w http.ResponseWriter, _ *http.Request) {
			if _, _, err := http.NewResponseController(w).Hijack(); !errors.Is(err, http.ErrNotSupported) {
				f.Errorf("by controller: %v", err)
			}
			if h, ok := w.(http.Hijacker); ok {
				if _, _, err := h.Hijack(); !errors.Is(err, http.ErrNotSupported) {
					f.Errorf("by interface: %v", err)
				}
			}
			text(w, "a")
		})
		s.twice(http.StatusOK, "a")
	}},
	{name: "deadlines reach the connection", http: true, run: func(f *fixture) {
		s := f.site(f.engine(), func(w http.ResponseWriter, _ *http.Request) {
			if err := http.NewResponseController(w).SetWriteDeadline(time.Now().Add(adaptertest.Patience)); err != nil {
				f.Error(err)
			}
			text(w, "a")
		})
		s.twice(http.StatusOK, "a")
	}},
	{name: "statuses that are kept for nobody", http: true, run: func(f *fixture) {
		for _, status := range []int{401, 408, 409, 425, 429, 500, 503} {
			s := f.site(f.engine(), func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(status) })
			key := key(status)
			s.send(http.MethodPost, path, "", key)
			s.send(http.MethodPost, path, "", key).Want(f, status, "")
			if n := s.Runs(); n != 2 {
				f.Errorf("%d: %d runs", status, n)
			}
		}
		for _, status := range []int{200, 202, 303, 400, 402, 403, 404, 410, 422} {
			s := f.site(f.engine(), func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(status) })
			key := key(status)
			s.send(http.MethodPost, path, "", key)
			s.send(http.MethodPost, path, "", key).Want(f, status, "")
			if n := s.Runs(); n != 1 {
				f.Errorf("%d: %d runs", status, n)
			}
		}
	}},
	{name: "a failure over the limit is sent and not stored", http: true, run: func(f *fixture) {
		s := f.site(f.engine(idempotency.MaxResponse(3)), func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(http.StatusInternalServerError)
			text(w, "long")
		})
		s.post().Want(f, 500, "long")
		s.post().Want(f, 500, "long")
		if n := s.Runs(); n != 2 {
			f.Errorf("%d runs", n)
		}
	}},
	{name: "an answer over the limit of one who was overtaken", http: true, run: func(f *fixture) {
		other := f.site(f.engine(), func(w http.ResponseWriter, _ *http.Request) { text(w, "theirs") })
		s := f.site(f.engine(idempotency.MaxResponse(3)), func(w http.ResponseWriter, r *http.Request) {
			f.rdb.FlushDB(r.Context())
			other.post().Want(f, 200, "theirs")
			if _, err := w.Write([]byte("ours")); err == nil {
				f.Error("the handler may write on")
			}
		})
		a := s.post()
		a.Want(f, 200, "theirs")
		if a.Header.Get("Idempotent-Replayed") != "true" {
			f.Error("it is no replay")
		}
	}},
}

// twiceMore sends the request again, which has been answered.
func (s *site) twiceMore(status int) {
	s.f.Helper()
	if a := s.post(); a.Status != status || a.Header.Get("Idempotent-Replayed") != "true" {
		s.f.Errorf("%d %v", a.Status, a.Header)
	}
}

// headerCases are the cases of headers that a handler shares with others.
var headerCases = []row{
	{name: "what net/http makes of odd handlers", http: true, run: odd},
	// gin's sessions save into the writer that their middleware was given.
	{name: "headers that middleware in front sets meanwhile", http: true, run: func(f *fixture) {
		for name, opts := range map[string][]idempotency.Option{"kept": nil, "over-the-limit": {idempotency.MaxResponse(1)}} {
			var front http.Header
			s := f.site(f.engine(opts...), func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Add("Set-Cookie", "theme=dark")
				w.Header().Del("X-Powered-By")
				w.Header().Set("X-Both", "handler")
				front.Add("Set-Cookie", "session=1")
				front.Set("X-Session", "1")
				front.Set("X-Both", "front")
				text(w, "ab")
			}, func(h http.Header) {
				front = h
				h.Set("Set-Cookie", "csrf=1")
				h.Set("X-Powered-By", "steam")
			})
			a := s.send(http.MethodPost, path, "", key(name))
			a.Want(f, 200, "ab")
			f.wantNames(name+": Set-Cookie", a.Header["Set-Cookie"], "csrf=1", "session=1", "theme=dark")
			f.wantNames(name+": X-Session", a.Header["X-Session"], "1")
			f.wantNames(name+": X-Both", a.Header["X-Both"], "handler")
			f.wantNames(name+": X-Powered-By", a.Header["X-Powered-By"])
		}
	}},
	{name: "a replay has nothing of what middleware in front has set meanwhile", http: true, run: func(f *fixture) {
		var front http.Header
		n := 0
		s := f.site(f.engine(), func(w http.ResponseWriter, _ *http.Request) {
			front.Set("X-Session", "1")
			front.Set("X-Front", "changed")
			text(w, "a")
		}, func(h http.Header) {
			front = h
			n++
			h.Set("X-Front", fmt.Sprint(n))
			if n > 1 {
				h.Set("X-Session", "2")
			}
		})
		first, second := s.twice(200, "a")
		f.wantNames("X-Front", append(first.Header["X-Front"], second.Header["X-Front"]...), "changed", "2")
		f.wantNames("X-Session", append(first.Header["X-Session"], second.Header["X-Session"]...), "1", "2")
	}},
	{name: "a field that middleware in front has set, and the handler removes", http: true, run: func(f *fixture) {
		s := f.site(f.engine(), func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Del("Content-Type")
			text(w, "<html>")
		}, func(h http.Header) { h.Set("Content-Type", "application/json") })
		first, second := s.twice(200, "<html>")
		const sniffed = "text/html; charset=utf-8"
		f.wantNames("Content-Type", append(first.Header["Content-Type"], second.Header["Content-Type"]...), sniffed, sniffed)
	}},
	// net/http finds the length out itself for up to 2 KiB.
	{name: "a long replay says its length if the first answer did", http: true, run: func(f *fixture) {
		body := strings.Repeat("x", 5000)
		for _, opts := range [][]idempotency.Option{nil, {idempotency.ReplayHeaders("Location")}} {
			for _, said := range []bool{true, false} {
				s := f.site(f.engine(opts...), func(w http.ResponseWriter, _ *http.Request) {
					if said {
						w.Header().Set("Content-Length", strconv.Itoa(len(body)))
					}
					w.WriteHeader(http.StatusCreated)
					_, _ = io.WriteString(w, body)
				})
				key := key(len(opts), "-", said)
				first, second := s.send(http.MethodPost, path, "", key), s.send(http.MethodPost, path, "", key)
				if first.Body != body || second.Body != body {
					f.Fatalf("%d and %d with %d and %d bytes", first.Status, second.Status, len(first.Body), len(second.Body))
				}
				want := ""
				if said {
					want = "5000"
				}
				if a, b := first.Header.Get("Content-Length"), second.Header.Get("Content-Length"); a != want || b != want {
					f.Errorf("Content-Length %q, of the replay %q; want %q", a, b, want)
				}
				if second.Header.Get(idempotency.ReplayedHeader) != "true" {
					f.Error("the second is no replay")
				}
			}
		}
	}},
}

// oddHandlers do what few handlers do.
var oddHandlers = map[string]http.HandlerFunc{
	"204 with a body": func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(204); text(w, "a") },
	"205":             func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(205) },
	"304 with a body and an ETag": func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("ETag", `"1"`)
		w.WriteHeader(304)
		text(w, "a")
	},
	"trailers without a body": func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Trailer", "X-Sum")
		w.WriteHeader(200)
		w.(http.Flusher).Flush() // gin has only noted the status
		w.Header().Set("X-Sum", "1")
	},
	"sniffed type": func(w http.ResponseWriter, _ *http.Request) { text(w, "<html>"); text(w, "<body>") },
	"no type":      func(w http.ResponseWriter, _ *http.Request) { w.Header()["Content-Type"] = nil; text(w, "<html>") },
	"no date":      func(w http.ResponseWriter, _ *http.Request) { w.Header()["Date"] = nil; text(w, "a") },
	"empty value":  func(w http.ResponseWriter, _ *http.Request) { w.Header().Set("X-Empty", ""); text(w, "a") },
	"lower-case name": func(w http.ResponseWriter, _ *http.Request) {
		w.Header()["x-lower"] = []string{"1"}
		text(w, "a")
	},
	"served content": func(w http.ResponseWriter, r *http.Request) {
		http.ServeContent(w, r, "a.txt", time.Unix(1, 0), strings.NewReader(strings.Repeat("x", 5000)))
	},
	"error after a header": func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Encoding", "br")
		w.Header().Set("ETag", "1")
		http.Error(w, "no", http.StatusUnprocessableEntity)
	},
	"empty write": func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(nil) },
	"copied":      func(w http.ResponseWriter, _ *http.Request) { _, _ = io.Copy(w, strings.NewReader("copied")) },
	"length of a 201": func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", "0")
		w.WriteHeader(201)
	},
	"204 with a length": func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", "5")
		w.WriteHeader(204)
	},
}

// odd holds the answers of odd handlers, and their replays, against what net/http
// makes of them alone.
func odd(f *fixture) {
	n := 0
	for name, h := range oddHandlers {
		n++
		bare, s := &site{f, adaptertest.Serve(f, h), nil}, f.site(f.engine(), h)
		send := func(s *site) adaptertest.Answer {
			a := s.send(http.MethodPost, path, "", key(n))
			a.Header.Del(idempotency.ReplayedHeader)
			return a
		}
		want := send(bare)
		for _, what := range []string{"first", "replay"} {
			got := send(s)
			if got.Status != want.Status || got.Body != want.Body || fmt.Sprint(got.Trailer) != fmt.Sprint(want.Trailer) {
				f.Errorf("%s, %s: %d, %d bytes, trailers %v; want %d, %d bytes, %v", name, what,
					got.Status, len(got.Body), got.Trailer, want.Status, len(want.Body), want.Trailer)
			}
			f.wantNames(name+", "+what+": differing", differ(got.Header, want.Header))
		}
	}
}

// chunked sends a body without saying how long it is.
func chunked(r *http.Request) { r.ContentLength = -1 }

// paid answers with what was paid to whom, as far as the handler finds out.
func paid(w http.ResponseWriter, r *http.Request) {
	amount := r.FormValue("amount")
	if file, _, err := r.FormFile("order"); err == nil {
		b, _ := io.ReadAll(file)
		amount = string(b)
	}
	_, _ = fmt.Fprintf(w, "paid %s to %s", amount, r.FormValue("to"))
}

// bodyCases are the cases of bodies that middleware in front reads.
var bodyCases = []row{
	{name: "a form that was parsed in front is another request if it differs", http: true, run: func(f *fixture) {
		for i, parse := range []http.HandlerFunc{
			func(_ http.ResponseWriter, r *http.Request) { r.FormValue("to") },
			func(_ http.ResponseWriter, r *http.Request) { _ = r.ParseForm() },
			func(_ http.ResponseWriter, r *http.Request) { _ = r.ParseMultipartForm(1) }, // files go to the disk
			func(_ http.ResponseWriter, r *http.Request) { _, _, _ = r.FormFile("order"); _ = r.Body.Close() },
		} {
			for kind, form := range map[string]func(to, amount string) func(*http.Request){
				"form": adaptertest.Form, "multipart": func(to, amount string) func(*http.Request) { return adaptertest.Multipart(f, to, amount) },
			} {
				s := f.behind(parse, f.engine(), paid)
				key := key(kind, i)
				for range 2 {
					s.send(http.MethodPost, path, "", form("alice", "5"), key).Want(f, 200, "paid 5 to alice")
				}
				s.send(http.MethodPost, path, "", form("alice", "5"), key, chunked).Want(f, 200, "paid 5 to alice")
				for _, other := range [][2]string{{"mallory", "900"}, {"alice", "900"}, {"mallory", "5"}} {
					for _, how := range []func(*http.Request){func(*http.Request) {}, chunked} {
						s.send(http.MethodPost, path, "", form(other[0], other[1]), key, how).
							WantProblem(f, 422, string(core.ReasonKeyReused), "")
					}
				}
				if n := s.Runs(); n != 1 {
					f.Errorf("%s %d: %d runs", kind, i, n)
				}
			}
		}
	}},
	{name: "a body that was read in front and put back", http: true, run: func(f *fixture) {
		s := f.behind(func(_ http.ResponseWriter, r *http.Request) {
			b, _ := io.ReadAll(r.Body)
			r.Body = io.NopCloser(bytes.NewReader(b))
		}, f.engine(), func(w http.ResponseWriter, r *http.Request) { _, _ = io.Copy(w, r.Body) })
		for _, how := range []func(*http.Request){func(*http.Request) {}, chunked} {
			s.send(http.MethodPost, path, "5 to alice", how).Want(f, 200, "5 to alice")
			s.send(http.MethodPost, path, "900 to mallory", how).WantProblem(f, 422, string(core.ReasonKeyReused), "")
		}
	}},
	{name: "a body that was read in front and is gone is the server's mistake", http: true, run: func(f *fixture) {
		for what, read := range map[string]func(r *http.Request){
			"all":    func(r *http.Request) { _, _ = io.Copy(io.Discard, r.Body) },
			"closed": func(r *http.Request) { _, _ = io.Copy(io.Discard, r.Body); _ = r.Body.Close() },
			"none":   func(r *http.Request) { _, _ = io.Copy(io.Discard, r.Body); r.Body = http.NoBody },
			"parts":  func(r *http.Request) { _, _ = r.MultipartReader(); _, _ = io.Copy(io.Discard, r.Body) },
			"some":   func(r *http.Request) { _, _ = io.ReadFull(r.Body, make([]byte, 4)) },
		} {
			logged := adaptertest.LogTo(f)
			s := f.behind(func(_ http.ResponseWriter, r *http.Request) { read(r) }, f.engine(), paid)
			s.send(http.MethodPost, path, "", adaptertest.Multipart(f, "alice", "5")).WantProblem(f, 500, string(core.ReasonMisconfigured), "")
			if what != "some" { // of a body without a length nothing says that its beginning is gone
				s.send(http.MethodPost, path, "", adaptertest.Multipart(f, "alice", "5"), chunked).
					WantProblem(f, 500, string(core.ReasonMisconfigured), "")
			}
			if n := s.Runs() + int64(f.records()); n != 0 {
				f.Errorf("%s: %d runs and records", what, n)
			}
			if text := logged.String(); !strings.Contains(text, "put the middleware that reads it behind") || strings.Contains(text, "alice") {
				f.Errorf("%s: logged is %q", what, text)
			}
		}
	}},
	{name: "a body that does not come whole, or in time", http: true, run: func(f *fixture) {
		slow := &adaptertest.Service{Configure: func(s *http.Server) { s.ReadTimeout = 1500 * time.Millisecond }}
		s := f.siteOf(slow, f.engine(), func(http.ResponseWriter, *http.Request) { f.Error("the handler ran") })
		for what, want := range map[string]struct {
			status int
			reason core.Reason
		}{
			"slow":   {408, core.ReasonBodyTimeout},
			"broken": {400, core.ReasonBodyIncomplete},
		} {
			conn, err := (&net.Dialer{}).DialContext(f.Context(), "tcp", s.srv.Listener.Addr().String())
			if err != nil {
				f.Fatal(err)
			}
			_, _ = fmt.Fprintf(conn, "POST %s HTTP/1.1\r\nHost: a\r\nAuthorization: alice\r\nIdempotency-Key: k\r\nContent-Length: 100\r\n\r\nabc", path)
			if what == "broken" {
				_ = conn.(*net.TCPConn).CloseWrite()
			}
			_ = conn.SetReadDeadline(time.Now().Add(adaptertest.Patience))
			answer, _ := io.ReadAll(conn)
			_ = conn.Close()
			if !strings.HasPrefix(string(answer), fmt.Sprint("HTTP/1.1 ", want.status)) ||
				!strings.Contains(string(answer), "urn:interlock:problem:"+string(want.reason)+`"`) {
				f.Errorf("%s: %s; want %+v", what, answer, want)
			}
		}
	}},
	{name: "a body is not read twice", http: true, run: func(f *fixture) {
		locker := f.locker()
		read := core.KeyFunc(func(_ context.Context, r core.Request) ([]string, error) {
			b, err := r.Body(100)
			return []string{"key/" + string(b)}, err
		})
		s := f.site(f.engine(idempotency.Under(core.Serialize(locker, "", read))), func(w http.ResponseWriter, r *http.Request) {
			_, _ = io.Copy(w, r.Body)
		})
		s.send(http.MethodPost, path, "abc").Want(f, 200, "abc")
	}},
}

// onHost asks for a host, over the same connection.
func onHost(host string) func(*http.Request) { return func(r *http.Request) { r.Host = host } }

// selectCases are the cases of what selects the resource, beside path and body.
var selectCases = []row{
	{name: "a path that a router in front has stripped is another request", http: true, run: func(f *fixture) {
		s := f.behind(func(_ http.ResponseWriter, r *http.Request) { // as http.StripPrefix does it
			r.URL.Path, r.URL.RawPath = r.URL.Path[len("/eu"):], ""
		}, f.engine(), func(w http.ResponseWriter, r *http.Request) { text(w, r.RequestURI[:3]) })
		s.send(http.MethodPost, "/eu"+path, "").Want(f, 200, "/eu")
		s.send(http.MethodPost, "/us"+path, "").WantProblem(f, 422, string(core.ReasonKeyReused), "")
		s.send(http.MethodPost, "/%65u"+path, "").Want(f, 200, "/eu")
		if n := s.Runs(); n != 1 {
			f.Errorf("%d runs", n)
		}
	}},
	{name: "another host is another request", http: true, run: func(f *fixture) {
		s := f.site(f.engine(), func(w http.ResponseWriter, r *http.Request) { text(w, r.Host) })
		s.send(http.MethodPost, path, "", onHost("eu.bank.example")).Want(f, 200, "eu.bank.example")
		s.send(http.MethodPost, path, "", onHost("EU.bank.example")).Want(f, 200, "eu.bank.example")
		for _, other := range []string{"us.bank.example", "eu.bank.example:8080", "127.0.0.1"} {
			s.send(http.MethodPost, path, "", onHost(other)).WantProblem(f, 422, string(core.ReasonKeyReused), "")
		}
	}},
	{name: "an address selects a server and no resource", http: true, run: func(f *fixture) {
		s := f.site(f.engine(), func(w http.ResponseWriter, r *http.Request) { text(w, r.Host) })
		for _, host := range []string{"127.0.0.1:8080", "10.0.0.2", "[::1]:80", "[::1]", "localhost:8081"} {
			s.send(http.MethodPost, path, "", onHost(host)).Want(f, 200, "127.0.0.1:8080")
		}
	}},
	{name: "another lock key is another request", http: true, run: func(f *fixture) {
		rule := core.Serialize(f.locker(), "tenant/{header.X-Tenant}/account/{id}")
		s := f.site(f.engine(idempotency.Under(rule)), func(w http.ResponseWriter, r *http.Request) {
			text(w, core.LeaseFromContext(r.Context()).Key())
		})
		for range 2 {
			s.send(http.MethodPost, path, "", adaptertest.WithHeader("X-Tenant", "a")).Want(f, 200, "tenant/a/account/42")
		}
		s.send(http.MethodPost, path, "", adaptertest.WithHeader("X-Tenant", "b")).WantProblem(f, 422, string(core.ReasonKeyReused), "")
		s.post().WantProblem(f, 400, string(core.ReasonBadKey), "")
		if n := s.Runs(); n != 1 {
			f.Errorf("%d runs", n)
		}
	}},
	{name: "Fingerprint adds and replaces", http: true, run: func(f *fixture) {
		parts := idempotency.Fingerprint(func(_ context.Context, r core.Request, p *idempotency.Parts) error {
			switch v := r.Header("Api-Version"); strings.Join(v, "") {
			case "bad":
				return core.ErrKey
			case "broken":
				return errors.New("no versions at the moment")
			default:
				p.More = append(p.More, v...)
			}
			p.Query, p.Host = "", ""
			p.Body = []byte(strings.ToLower(string(p.Body)))
			return nil
		})
		adaptertest.LogTo(f)
		s := f.site(f.engine(parts), func(w http.ResponseWriter, _ *http.Request) { text(w, "a") })
		s.send(http.MethodPost, path+"?signature=1", "Body", adaptertest.WithHeader("Api-Version", "1")).Want(f, 200, "a")
		s.send(http.MethodPost, path+"?signature=2", "body", adaptertest.WithHeader("Api-Version", "1"), onHost("b.example")).Want(f, 200, "a")
		for _, other := range []adaptertest.Answer{
			s.send(http.MethodPost, path, "body", adaptertest.WithHeader("Api-Version", "2")),
			s.send(http.MethodPost, path, "body"),
			s.send(http.MethodPost, path, "other", adaptertest.WithHeader("Api-Version", "1")),
		} {
			other.WantProblem(f, 422, string(core.ReasonKeyReused), "")
		}
		s.send(http.MethodPost, path, "body", adaptertest.WithHeader("Api-Version", "bad")).WantProblem(f, 400, string(core.ReasonBadKey), "")
		s.send(http.MethodPost, path, "body", adaptertest.WithHeader("Api-Version", "broken")).WantProblem(f, 500, string(core.ReasonInternal), "")
		if n := s.Runs(); n != 1 {
			f.Errorf("%d runs", n)
		}
	}},
}
