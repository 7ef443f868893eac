package idemcases

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/interlock-go/interlock/core/idempotency"
	"github.com/interlock-go/interlock/core/idempotency/endpoint"
	"github.com/interlock-go/interlock/core/reason"
	"github.com/interlock-go/interlock/internal/testkit"
)

// responseCases are the cases of answers of HTTP and their replays.
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
	{name: "a redirect", http: true, run: func(f *fixture) {
		s := f.site(f.engine(), func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, "/payments/1", http.StatusSeeOther) })
		first, second := s.twice(http.StatusSeeOther, "")
		f.wantNames("differing", differ(first.Header, second.Header), "Idempotent-Replayed")
	}},
	{name: "handed over to a job", http: true, run: func(f *fixture) {
		engine := f.engine()
		var ticket idempotency.Ticket
		s := f.site(engine, func(w http.ResponseWriter, r *http.Request) {
			var err error
			if ticket, err = idempotency.HandOver(r.Context(), time.Minute); err != nil {
				f.Error(err)
			}
			w.Header().Set("Location", "/payments/1")
			w.WriteHeader(http.StatusAccepted)
		})
		first, second := s.twice(http.StatusAccepted, "")
		f.wantNames("differing", differ(first.Header, second.Header), idempotency.InterimHeader, "Idempotent-Replayed")
		if second.Header.Get(idempotency.InterimHeader) != "true" {
			f.Errorf("an interim answer has the header %v", second.Header)
		}
		err := engine.TakeOver(f.Context(), ticket, func(context.Context) (endpoint.Response, error) {
			return endpoint.Response{Status: http.StatusCreated, Header: http.Header{"X-Paid": {"1"}}, Body: []byte("paid")}, nil
		})
		if err != nil {
			f.Error(err)
		}
		last := testkit.Do(f, s.srv, http.MethodPost, path, testkit.WithHeader(idempotency.KeyHeader, "k"),
			testkit.WithHeader("Authorization", "alice"), testkit.WithBody("", ""))
		if last.Want(f, http.StatusCreated, "paid"); last.Header.Get("X-Paid") != "1" || last.Header.Get(idempotency.InterimHeader) != "" {
			f.Errorf("the final answer has the header %v", last.Header)
		}
	}},
	{name: "nothing leaves before it is stored", http: true, run: func(f *fixture) {
		g, engine := testkit.NewGate(), f.engine()
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
		s.post().WantProblem(f, 409, string(reason.InFlight), "1")
		close(g.Leave)
		f.wait("answered", answered)
		if a := s.post(); a.Status != http.StatusCreated || a.Header.Get("Idempotent-Replayed") != "true" {
			f.Errorf("%d %v", a.Status, a.Header)
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
	{name: "trailers of an answer over the limit", http: true, where: outside, run: func(f *fixture) {
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
		s.post().WantProblem(f, 409, string(reason.ResponseUnavailable), "")
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
		if n := f.Count(f, "interlock"); n != 0 {
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
			s.send(other[0], other[1], other[2]).WantProblem(f, 422, string(reason.KeyReused), "")
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
		s.send(http.MethodPost, path, "01234567890", chunked).WantProblem(f, 413, string(reason.BodyTooLarge), "")
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
			if err := http.NewResponseController(w).SetWriteDeadline(time.Now().Add(testkit.Patience)); err != nil {
				f.Error(err)
			}
			text(w, "a")
		})
		s.twice(http.StatusOK, "a")
	}},
	{name: "an answer over the limit of a handler that was overtaken", http: true, where: outside, run: func(f *fixture) {
		other := f.site(f.engine(), func(w http.ResponseWriter, _ *http.Request) { text(w, "theirs") })
		s := f.site(f.engine(idempotency.MaxResponse(3)), func(w http.ResponseWriter, _ *http.Request) {
			f.Empty(f)
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
