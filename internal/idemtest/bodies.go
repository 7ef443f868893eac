package idemtest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"mime/multipart"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/idempotency"
)

// Logged collects what is logged through slog.Default until the test ends.
func Logged(tb testing.TB) (text func() string) {
	tb.Helper()
	var mu sync.Mutex
	var b bytes.Buffer
	before := slog.Default()
	slog.SetDefault(slog.New(slog.NewTextHandler(writerFunc(func(p []byte) (int, error) {
		mu.Lock()
		defer mu.Unlock()
		return b.Write(p)
	}), nil)))
	tb.Cleanup(func() { slog.SetDefault(before) })
	return func() string {
		mu.Lock()
		defer mu.Unlock()
		return b.String()
	}
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }

// Form is a payment as a form, and the change of a request that sends it.
func Form(to, amount string) func(*http.Request) {
	return WithBody("application/x-www-form-urlencoded", url.Values{"to": {to}, "amount": {amount}}.Encode())
}

// Multipart is the same as a form with a file, the amount in the file.
func Multipart(tb testing.TB, to, amount string) func(*http.Request) {
	tb.Helper()
	const boundary = "the-same-each-time"
	var b bytes.Buffer
	w := multipart.NewWriter(&b)
	err := errors.Join(w.SetBoundary(boundary), w.WriteField("to", to))
	if file, err2 := w.CreateFormFile("order", "order.txt"); err == nil {
		_, err = io.WriteString(file, amount)
		err = errors.Join(err, err2)
	}
	if err = errors.Join(err, w.Close()); err != nil {
		tb.Fatal(err)
	}
	return WithBody("multipart/form-data; boundary="+boundary, b.String())
}

// WithBody gives a request a body.
func WithBody(contentType, body string) func(*http.Request) {
	return func(r *http.Request) {
		r.Header.Set("Content-Type", contentType)
		r.Header.Set("Idempotency-Key", "k")
		r.ContentLength, r.Body = int64(len(body)), io.NopCloser(strings.NewReader(body))
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

// bodyTable are the cases of bodies that middleware in front reads.
var bodyTable = []httpCase{
	{"a form that was parsed in front is another request if it differs", func(f *httpFixture) {
		for i, parse := range []http.HandlerFunc{
			func(_ http.ResponseWriter, r *http.Request) { r.FormValue("to") },
			func(_ http.ResponseWriter, r *http.Request) { _ = r.ParseForm() },
			func(_ http.ResponseWriter, r *http.Request) { _ = r.ParseMultipartForm(1) }, // files go to the disk
			func(_ http.ResponseWriter, r *http.Request) { _, _, _ = r.FormFile("order"); _ = r.Body.Close() },
		} {
			for kind, form := range map[string]func(to, amount string) func(*http.Request){
				"form": Form, "multipart": func(to, amount string) func(*http.Request) { return Multipart(f, to, amount) },
			} {
				s := f.behind(parse, f.engine(), paid)
				key := func(r *http.Request) { r.Header.Set("Idempotency-Key", fmt.Sprint(kind, i)) }
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
				if n := s.runs.Load(); n != 1 {
					f.Errorf("%s %d: %d runs", kind, i, n)
				}
			}
		}
	}},
	{"a body that was read in front and put back", func(f *httpFixture) {
		s := f.behind(func(_ http.ResponseWriter, r *http.Request) {
			b, _ := io.ReadAll(r.Body)
			r.Body = io.NopCloser(bytes.NewReader(b))
		}, f.engine(), func(w http.ResponseWriter, r *http.Request) { _, _ = io.Copy(w, r.Body) })
		for _, how := range []func(*http.Request){func(*http.Request) {}, chunked} {
			s.send(http.MethodPost, path, "5 to alice", how).Want(f, 200, "5 to alice")
			s.send(http.MethodPost, path, "900 to mallory", how).WantProblem(f, 422, string(core.ReasonKeyReused), "")
		}
	}},
	{"a body that was read in front and is gone is the server's mistake", func(f *httpFixture) {
		for what, read := range map[string]func(r *http.Request){
			"all":    func(r *http.Request) { _, _ = io.Copy(io.Discard, r.Body) },
			"closed": func(r *http.Request) { _, _ = io.Copy(io.Discard, r.Body); _ = r.Body.Close() },
			"none":   func(r *http.Request) { _, _ = io.Copy(io.Discard, r.Body); r.Body = http.NoBody },
			"parts":  func(r *http.Request) { _, _ = r.MultipartReader(); _, _ = io.Copy(io.Discard, r.Body) },
			"some":   func(r *http.Request) { _, _ = io.ReadFull(r.Body, make([]byte, 4)) },
		} {
			logged := Logged(f)
			s := f.behind(func(_ http.ResponseWriter, r *http.Request) { read(r) }, f.engine(), paid)
			s.send(http.MethodPost, path, "", Multipart(f, "alice", "5")).WantProblem(f, 500, string(core.ReasonMisconfigured), "")
			if what != "some" { // of a body without a length nothing says that its beginning is gone
				s.send(http.MethodPost, path, "", Multipart(f, "alice", "5"), chunked).
					WantProblem(f, 500, string(core.ReasonMisconfigured), "")
			}
			if n := s.runs.Load() + int64(f.records()); n != 0 {
				f.Errorf("%s: %d runs and records", what, n)
			}
			if text := logged(); !strings.Contains(text, "put the middleware that reads it behind") || strings.Contains(text, "alice") {
				f.Errorf("%s: logged is %q", what, text)
			}
		}
	}},
	{"a body that does not come whole, or in time", func(f *httpFixture) {
		build := f.serveWith(f, &Endpoint{Engine: f.engine(), HTTP: func(http.ResponseWriter, *http.Request) { f.Error("the handler ran") }})
		srv := httptest.NewUnstartedServer(build)
		srv.Config.ReadTimeout = 1500 * time.Millisecond
		srv.Start()
		defer srv.Close()
		for what, want := range map[string]struct {
			status int
			reason core.Reason
		}{
			"slow":   {408, core.ReasonBodyTimeout},
			"broken": {400, core.ReasonBodyIncomplete},
		} {
			conn, err := (&net.Dialer{}).DialContext(f.Context(), "tcp", srv.Listener.Addr().String())
			if err != nil {
				f.Fatal(err)
			}
			_, _ = fmt.Fprintf(conn, "POST %s HTTP/1.1\r\nHost: a\r\nAuthorization: alice\r\nIdempotency-Key: k\r\nContent-Length: 100\r\n\r\nabc", path)
			if what == "broken" {
				_ = conn.(*net.TCPConn).CloseWrite()
			}
			_ = conn.SetReadDeadline(time.Now().Add(Patience))
			answer, _ := io.ReadAll(conn)
			_ = conn.Close()
			if !strings.HasPrefix(string(answer), fmt.Sprint("HTTP/1.1 ", want.status)) ||
				!strings.Contains(string(answer), "urn:interlock:problem:"+string(want.reason)+`"`) {
				f.Errorf("%s: %s; want %+v", what, answer, want)
			}
		}
	}},
	{"a body is not read twice", func(f *httpFixture) {
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
