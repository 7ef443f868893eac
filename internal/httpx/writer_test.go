package httpx_test

import (
	"bufio"
	"net"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/interlock-go/interlock/internal/httpx"
)

type (
	plain    struct{ http.ResponseWriter } // hides what is below
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
