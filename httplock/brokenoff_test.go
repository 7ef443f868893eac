package httplock_test

import (
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/go-chi/chi/v5/middleware"

	"github.com/interlock-go/interlock/httplock"
	"github.com/interlock-go/interlock/internal/adaptertest"
)

// The handler has begun to say that it succeeded, so a retry must not run it again. A retry
// must not get the part for the whole either.
func TestAResponseThatBreaksOffIsNotReplayedAsIfItWereWhole(t *testing.T) {
	half := func(w http.ResponseWriter) {
		w.WriteHeader(http.StatusCreated)
		_, _ = io.WriteString(w, "half of the")
	}
	recoverer := middleware.Recoverer
	for name, c := range map[string]struct {
		inside  func(http.Handler) http.Handler
		handler func(w http.ResponseWriter)
		aborts  bool // the panic passes through
	}{
		"shorter than its Content-Length": {nil, func(w http.ResponseWriter) { w.Header().Set("Content-Length", "20"); half(w) }, false},
		"followed by http.Error":          {nil, func(w http.ResponseWriter) { half(w); http.Error(w, "disk full", http.StatusInternalServerError) }, false},
		"aborted, as a proxy does":        {nil, func(w http.ResponseWriter) { half(w); panic(http.ErrAbortHandler) }, true},
		"panic, recovered behind":         {recoverer, func(w http.ResponseWriter) { half(w); panic(errors.New("disk full")) }, false},
	} {
		t.Run(name, func(t *testing.T) {
			logged, runs := adaptertest.LogTo(t), 0
			h := http.Handler(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { runs++; c.handler(w) }))
			if c.inside != nil {
				h = c.inside(h)
			}
			h = httplock.Idempotent(adaptertest.Engine(t))(h)
			srv := adaptertest.Serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				defer func() {
					if recover() != nil {
						w.WriteHeader(http.StatusBadGateway)
					}
				}()
				h.ServeHTTP(w, r)
			}))
			if c.aborts {
				adaptertest.Post(t, srv, "/").WantOwn(t, 502, "")
			} else {
				adaptertest.Post(t, srv, "/").WantProblem(t, 409, "idempotency-response-unavailable", "")
			}
			adaptertest.Post(t, srv, "/").WantProblem(t, 409, "idempotency-response-unavailable", "")
			if runs != 1 {
				t.Errorf("the handler ran %d times; want 1", runs)
			}
			if n := strings.Count(logged.String(), "retries are told that it is not available"); n != 1 {
				t.Errorf("logged %d times; want once: %s", n, logged)
			}
		})
	}
}

// No part of an answer has left, and it was none of success.
func TestAFailureThatIsShorterThanItsContentLengthIsAFailure(t *testing.T) {
	runs := 0
	srv := adaptertest.Serve(t, httplock.Idempotent(adaptertest.Engine(t))(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if runs++; runs == 1 {
			w.Header().Set("Content-Length", "10")
			w.WriteHeader(http.StatusNotFound)
			_, _ = io.WriteString(w, "01234")
			return
		}
		_, _ = io.WriteString(w, "56789")
	})))
	adaptertest.Post(t, srv, "/").WantOwn(t, 500, "")
	adaptertest.Post(t, srv, "/").WantOwn(t, 200, "56789")
}
