package idemtest

import (
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"

	"github.com/interlock-go/interlock/core/idempotency"
)

// httpCase is a case of HTTP.
type httpCase struct {
	name string
	run  func(f *httpFixture)
}

// headerTable are the cases of headers that a handler shares with others.
var headerTable = []httpCase{
	{"what net/http makes of odd handlers", odd},
	// gin's sessions save into the writer that their middleware was given.
	{"headers that middleware in front sets meanwhile", func(f *httpFixture) {
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
			a := s.send(http.MethodPost, path, "", func(r *http.Request) { r.Header.Set("Idempotency-Key", name) })
			a.Want(f, 200, "ab")
			f.wantNames(name+": Set-Cookie", a.Header["Set-Cookie"], "csrf=1", "session=1", "theme=dark")
			f.wantNames(name+": X-Session", a.Header["X-Session"], "1")
			f.wantNames(name+": X-Both", a.Header["X-Both"], "handler")
			f.wantNames(name+": X-Powered-By", a.Header["X-Powered-By"])
		}
	}},
	{"a replay has nothing of what middleware in front has set meanwhile", func(f *httpFixture) {
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
	{"a field that middleware in front has set, and the handler removes", func(f *httpFixture) {
		s := f.site(f.engine(), func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Del("Content-Type")
			text(w, "<html>")
		}, func(h http.Header) { h.Set("Content-Type", "application/json") })
		first, second := s.twice(200, "<html>")
		const sniffed = "text/html; charset=utf-8"
		f.wantNames("Content-Type", append(first.Header["Content-Type"], second.Header["Content-Type"]...), sniffed, sniffed)
	}},
	// net/http finds the length out itself for up to 2 KiB.
	{"a long replay says its length if the first answer did", func(f *httpFixture) {
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
				key := func(r *http.Request) { r.Header.Set("Idempotency-Key", fmt.Sprintf("%d-%v", len(opts), said)) }
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
