package httpx_test

import (
	"bufio"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/interlock-go/interlock/internal/httpx"
	"github.com/interlock-go/interlock/internal/testkit"
)

type (
	plain    struct{ http.ResponseWriter } // hides the writer below
	wrapping struct{ http.ResponseWriter }
	taken    struct{ http.ResponseWriter }
	fails    struct{ http.ResponseWriter }
)

func (w wrapping) Unwrap() http.ResponseWriter { return w.ResponseWriter }

func (taken) Hijack() (net.Conn, *bufio.ReadWriter, error) { return nil, nil, nil }

func (fails) FlushError() error { return nil }

func TestTheWriterOfAHandlerClaimsOnlyWhatTheOneBelowCanDo(t *testing.T) {
	recorder := httptest.NewRecorder() // flushes
	for name, c := range map[string]struct {
		w             http.ResponseWriter
		flush, hijack bool
	}{
		"neither":              {w: plain{recorder}},
		"neither, wrapped":     {w: wrapping{plain{recorder}}},
		"flushes":              {w: recorder, flush: true},
		"flushes, wrapped":     {w: wrapping{wrapping{recorder}}, flush: true},
		"flushes by error":     {w: fails{plain{recorder}}, flush: true},
		"can be taken":         {w: taken{plain{recorder}}, hijack: true},
		"both":                 {w: both{recorder, taken{}}, flush: true, hijack: true},
		"both, behind a Write": {w: wrapping{both{recorder, taken{}}}, flush: true, hijack: true},
	} {
		t.Run(name, func(t *testing.T) {
			tracked := &httpx.Writer{ResponseWriter: c.w}
			w := tracked.ForHandler()
			f, flush := w.(http.Flusher)
			h, hijack := w.(http.Hijacker)
			if flush != c.flush || hijack != c.hijack {
				t.Errorf("it says Flusher %v, Hijacker %v; want %v, %v", flush, hijack, c.flush, c.hijack)
			}
			if err := http.NewResponseController(w).Flush(); (err == nil) != c.flush {
				t.Errorf("the ResponseController flushes with %v", err)
			}
			if flush {
				f.Flush()
			}
			if hijack {
				if _, _, err := h.Hijack(); err != nil {
					t.Error(err)
				}
			}
			if want := c.flush || c.hijack; tracked.Answered != want {
				t.Errorf("answered is %v, want %v", tracked.Answered, want)
			}
		})
	}
}

// both flushes and can be taken over.
type both struct {
	*httptest.ResponseRecorder
	taken
}

func (b both) Header() http.Header         { return b.ResponseRecorder.Header() }
func (b both) Write(p []byte) (int, error) { return b.ResponseRecorder.Write(p) }
func (b both) WriteHeader(status int)      { b.ResponseRecorder.WriteHeader(status) }

func TestWriterKnowsWhenTheAnswerHasBegun(t *testing.T) {
	for name, c := range map[string]struct {
		f    func(w *httpx.Writer)
		want bool
	}{
		"nothing":     {func(*httpx.Writer) {}, false},
		"headers":     {func(w *httpx.Writer) { w.Header().Set("X", "y") }, false},
		"early hints": {func(w *httpx.Writer) { w.WriteHeader(http.StatusEarlyHints) }, false},
		"status":      {func(w *httpx.Writer) { w.WriteHeader(http.StatusNoContent) }, true},
		"upgrade":     {func(w *httpx.Writer) { w.WriteHeader(http.StatusSwitchingProtocols) }, true},
		"body":        {func(w *httpx.Writer) { _, _ = w.Write([]byte("x")) }, true},
		"string":      {func(w *httpx.Writer) { _, _ = io.WriteString(w, "x") }, true},
		"copy":        {func(w *httpx.Writer) { _, _ = io.Copy(w, readerOnly{strings.NewReader("x")}) }, true},
		"copy of nothing": {func(w *httpx.Writer) {
			if _, err := io.Copy(w, errReader{io.ErrUnexpectedEOF}); !errors.Is(err, io.ErrUnexpectedEOF) {
				t.Error(err)
			}
		}, false},
		"flush":      {func(w *httpx.Writer) { w.ForHandler().(http.Flusher).Flush() }, true},
		"controller": {func(w *httpx.Writer) { _ = http.NewResponseController(w).Flush() }, true},
		"flush that cannot": {func(w *httpx.Writer) {
			w.ResponseWriter = testkit.Deaf{Headers: http.Header{}}
			if err := http.NewResponseController(w).Flush(); !errors.Is(err, http.ErrNotSupported) {
				t.Error(err)
			}
		}, false},
		"hijack that fails": {func(w *httpx.Writer) {
			if _, _, err := http.NewResponseController(w.ForHandler()).Hijack(); !errors.Is(err, http.ErrNotSupported) {
				t.Error(err)
			}
		}, false},
	} {
		w := &httpx.Writer{ResponseWriter: httptest.NewRecorder()}
		if c.f(w); w.Answered != c.want {
			t.Errorf("%s: answered %v; want %v", name, w.Answered, c.want)
		}
	}
}

// readerOnly hides WriterTo, which io.Copy prefers to io.ReaderFrom.
type readerOnly struct{ io.Reader }
