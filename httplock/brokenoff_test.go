package httplock_test

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-chi/chi/v5/middleware"

	"github.com/interlock-go/interlock/httplock"
	"github.com/interlock-go/interlock/internal/logtest"
	"github.com/interlock-go/interlock/internal/testkit"
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
			logged, runs := testkit.LogTo(t), 0
			h := http.Handler(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { runs++; c.handler(w) }))
			if c.inside != nil {
				h = c.inside(h)
			}
			h = httplock.Idempotent(testkit.Engine(t))(h)
			srv := testkit.Serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				defer func() {
					if recover() != nil {
						w.WriteHeader(http.StatusBadGateway)
					}
				}()
				h.ServeHTTP(w, r)
			}))
			if c.aborts {
				testkit.Post(t, srv, "/").WantOwn(t, 502, "")
			} else {
				testkit.Post(t, srv, "/").WantProblem(t, 409, "idempotency-response-unavailable", "")
			}
			testkit.Post(t, srv, "/").WantProblem(t, 409, "idempotency-response-unavailable", "")
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
	srv := testkit.Serve(t, httplock.Idempotent(testkit.Engine(t))(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if runs++; runs == 1 {
			w.Header().Set("Content-Length", "10")
			w.WriteHeader(http.StatusNotFound)
			_, _ = io.WriteString(w, "01234")
			return
		}
		_, _ = io.WriteString(w, "56789")
	})))
	testkit.Post(t, srv, "/").WantOwn(t, 500, "")
	testkit.Post(t, srv, "/").WantOwn(t, 200, "56789")
}

// clogged is the handler of a log that leads into a pipe that no process reads.
type clogged struct {
	slog.Handler
	read chan struct{} // closed: the pipe is read again
}

func (c clogged) Enabled(context.Context, slog.Level) bool { <-c.read; return true }

// A request holds its claim, and the lock around it, while it says what is wrong with the answer.
func TestALogThatBlocksKeepsNoAnswerWithAWrongLength(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		pipe := clogged{slog.DiscardHandler, make(chan struct{})}
		logtest.SetDefault(t, pipe)
		hung := time.AfterFunc(time.Hour, func() {
			t.Error("a request waits for the log")
			close(pipe.read)
		})
		h := httplock.Idempotent(testkit.Engine(t))(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "20")
			w.WriteHeader(http.StatusBadGateway)
			_, _ = io.WriteString(w, "half of the")
		}))
		begin, answer, r := time.Now(), httptest.NewRecorder(), httptest.NewRequest(http.MethodPost, "/", nil)
		r.Header.Set("Idempotency-Key", "k")
		h.ServeHTTP(answer, r)
		if took := time.Since(begin); answer.Code != http.StatusInternalServerError || took > time.Second {
			t.Errorf("%d after %v; want 500 in a short time, while the log blocks", answer.Code, took)
		}
		if hung.Stop() {
			close(pipe.read)
		}
	})
}
