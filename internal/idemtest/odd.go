package idemtest

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/interlock-go/interlock/core/idempotency"
	"github.com/interlock-go/interlock/internal/adaptertest"
)

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
func odd(f *httpFixture) {
	n := 0
	for name, h := range oddHandlers {
		n++
		bare, s := &site{f: f, srv: adaptertest.Serve(f, h)}, f.site(f.engine(), h)
		send := func(s *site) response {
			a := s.send(http.MethodPost, path, "", func(r *http.Request) { r.Header.Set("Idempotency-Key", fmt.Sprint(n)) })
			a.Header.Del(idempotency.ReplayedHeader)
			return a
		}
		want := send(bare)
		for _, what := range []string{"first", "replay"} {
			got := send(s)
			if got.Status != want.Status || got.Body != want.Body || fmt.Sprint(got.trailer) != fmt.Sprint(want.trailer) {
				f.Errorf("%s, %s: %d, %d bytes, trailers %v; want %d, %d bytes, %v", name, what,
					got.Status, len(got.Body), got.trailer, want.Status, len(want.Body), want.trailer)
			}
			f.wantNames(name+", "+what+": differing", differ(got.Header, want.Header))
		}
	}
}
