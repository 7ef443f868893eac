package idemcases

import (
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/interlock-go/interlock/core/idempotency"
	"github.com/interlock-go/interlock/internal/testkit"
)

// headerCases are the cases of headers that a handler shares with others.
var headerCases = []row{
	{name: "what net/http makes of odd handlers", http: true, run: odd},
	// A reverse proxy copies them.
	{name: "marks of another service are not those of a first answer", http: true, run: func(f *fixture) {
		for name, opts := range map[string][]idempotency.Option{"kept": nil, "over-the-limit": {idempotency.MaxResponse(1)}} {
			if f.ledger != nil && opts != nil { // nothing is sent ahead of the transaction
				continue
			}
			s := f.site(f.engine(opts...), func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set(idempotency.ReplayedHeader, "true")
				w.Header().Set(idempotency.InterimHeader, "true")
				w.Header().Set(idempotency.ResultHeader, "held")
				text(w, "ab")
			})
			a := s.send(http.MethodPost, path, "", key(name))
			a.WantOwn(f, 200, "ab")
			if h := a.Header; h.Get(idempotency.InterimHeader) != "" || h.Get(idempotency.ResultHeader) != idempotency.ResultAnswered {
				f.Errorf("%s: the first answer has the header %v", name, h)
			}
		}
	}},
	// gin's sessions save into the writer that their middleware was given.
	{name: "headers that middleware in front sets meanwhile", http: true, run: func(f *fixture) {
		modes := map[string][]idempotency.Option{"kept": nil, "over-the-limit": {idempotency.MaxResponse(1)}}
		if f.ledger != nil { // nothing is sent ahead of the transaction
			delete(modes, "over-the-limit")
		}
		for name, opts := range modes {
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

// oddHandlers have unusual behaviour.
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
	"nothing": func(http.ResponseWriter, *http.Request) {},
	"several values": func(w http.ResponseWriter, _ *http.Request) {
		w.Header()["Vary"] = []string{"Accept, Accept-Encoding", "Origin"}
		text(w, "a")
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

// odd holds the answers of odd handlers, and their replays, against the answers of net/http
// alone.
func odd(f *fixture) {
	n := 0
	for name, h := range oddHandlers {
		n++
		bare, s := &site{f, testkit.Serve(f, h), nil}, f.site(f.engine(), h)
		send := func(s *site, mark string) testkit.Answer {
			a := s.send(http.MethodPost, path, "", key(n))
			if got := a.Header.Get(idempotency.ResultHeader); got != mark {
				f.Errorf("%s: %s is %q; want %q", name, idempotency.ResultHeader, got, mark)
			}
			a.Header.Del(idempotency.ResultHeader)
			a.Header.Del(idempotency.ReplayedHeader)
			return a
		}
		want := send(bare, "")
		for _, what := range []string{"first", "replay"} {
			got := send(s, idempotency.ResultAnswered)
			if got.Status != want.Status || got.Body != want.Body || fmt.Sprint(got.Trailer) != fmt.Sprint(want.Trailer) {
				f.Errorf("%s, %s: %d, %d bytes, trailers %v; want %d, %d bytes, %v", name, what,
					got.Status, len(got.Body), got.Trailer, want.Status, len(want.Body), want.Trailer)
			}
			f.wantNames(name+", "+what+": differing", differ(got.Header, want.Header))
		}
	}
}
