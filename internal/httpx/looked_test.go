package httpx_test

import (
	"bytes"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/adapter"
	"github.com/interlock-go/interlock/internal/httpx"
)

// wrapped is how a metrics middleware leaves a body.
type wrapped struct{ io.ReadCloser }

// fronts are changes of a body of "amount=900" by middleware in front, and their results:
// where it is known how much was read (chunks of HTTP/1, a length, MeasureBody), and where it
// is not.
var fronts = map[string]struct {
	do             func(w http.ResponseWriter, r *http.Request)
	known, unknown string
}{
	"nothing":  {func(http.ResponseWriter, *http.Request) {}, "amount=900", "amount=900"},
	"wraps it": {func(_ http.ResponseWriter, r *http.Request) { r.Body = wrapped{r.Body} }, "amount=900", "amount=900"},
	"limits it": {func(w http.ResponseWriter, r *http.Request) {
		r.Body = http.MaxBytesReader(w, http.MaxBytesReader(w, r.Body, 50), 20)
	}, "amount=900", "amount=900"},
	"parses another form": {func(_ http.ResponseWriter, r *http.Request) { _ = r.ParseForm() }, "amount=900", "amount=900"},
	"reads a part":        {func(_ http.ResponseWriter, r *http.Request) { read(r, 8) }, "misconfigured", "00"},
	"reads a chunk":       {func(_ http.ResponseWriter, r *http.Request) { read(r, 6) }, "misconfigured", "=900"},
	"reads two chunks":    {func(_ http.ResponseWriter, r *http.Request) { read(r, 10) }, "misconfigured", "body-incomplete"},
	"reads all":           {func(_ http.ResponseWriter, r *http.Request) { _, _ = io.Copy(io.Discard, r.Body) }, "misconfigured", "body-incomplete"},
	"reads all and closes": {func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		_ = r.Body.Close()
	}, "misconfigured", "body-incomplete"},
	"closes it":     {func(_ http.ResponseWriter, r *http.Request) { _ = r.Body.Close() }, "misconfigured", "body-incomplete"},
	"takes it away": {func(_ http.ResponseWriter, r *http.Request) { r.Body = http.NoBody }, "misconfigured", "misconfigured"},
	"reads behind its limit": {func(w http.ResponseWriter, r *http.Request) {
		r.Body = http.MaxBytesReader(w, r.Body, 20)
		read(r, 8)
	}, "misconfigured", "00"},
	"puts it back": {func(_ http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		r.Body = io.NopCloser(bytes.NewReader(b))
	}, "amount=900", "amount=900"},
	"puts a part back": {func(_ http.ResponseWriter, r *http.Request) {
		b := read(r, 8)
		r.Body = wrapped{struct {
			io.Reader
			io.Closer
		}{io.MultiReader(bytes.NewReader(b), r.Body), r.Body}}
	}, "amount=900", "amount=900"},
}

func read(r *http.Request, n int) []byte {
	b := make([]byte, n)
	_, _ = io.ReadFull(r.Body, b)
	return b
}

// chunks is a body in parts, without a length.
func chunks(parts ...string) io.Reader {
	readers := make([]io.Reader, len(parts))
	for i, p := range parts {
		readers[i] = strings.NewReader(p)
	}
	return io.MultiReader(readers...)
}

// seen serves a request, and returns the body as the handler sees it.
func seen(t *testing.T, http2 bool, body io.Reader, front http.HandlerFunc, change ...func(*http.Request)) string {
	t.Helper()
	srv := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		front(w, r)
		b, err := httpx.Request{Request: r}.Body(100)
		switch {
		case errors.Is(err, core.ErrConfig):
			b = []byte("misconfigured")
		case err != nil:
			b = []byte(core.ReasonOf(r.Context(), err))
		default:
			if again, err := io.ReadAll(r.Body); err != nil || !bytes.Equal(again, b) {
				t.Errorf("the handler reads %q, %v; want %q", again, err, b)
			}
		}
		_, _ = w.Write(b)
	}))
	if srv.EnableHTTP2 = http2; http2 {
		srv.StartTLS()
	} else {
		srv.Start()
	}
	defer srv.Close()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, srv.URL, body)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range change {
		f(req)
	}
	resp, err := srv.Client().Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	b, err := io.ReadAll(resp.Body)
	if err != nil || (resp.ProtoMajor == 2) != http2 {
		t.Fatal(resp.Proto, err)
	}
	return string(b)
}

// The rest of a body that was read in part is not the body: two payments would be one.
func TestABodyThatWasReadInPartIsNotTakenForTheWhole(t *testing.T) {
	measured := func(front http.HandlerFunc) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			*r = *r.WithContext(httpx.Measure(r))
			front(w, r)
		}
	}
	for name, c := range fronts {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for http2, proto := range map[bool]string{false: "HTTP/1", true: "HTTP/2"} {
				c, want := c, c.known
				if http2 && name == "closes it" {
					c.known = c.unknown // the error of HTTP/2 is not exported
				}
				if http2 {
					want = c.unknown
				}
				if got := seen(t, http2, chunks("amount", "=900"), c.do); got != want {
					t.Errorf("%s, no length: %q, want %q", proto, got, want)
				}
				if got := seen(t, http2, chunks("amount", "=900"), measured(c.do)); got != c.known {
					t.Errorf("%s, no length, measured: %q, want %q", proto, got, c.known)
				}
				for what, front := range map[string]http.HandlerFunc{"": c.do, ", measured": measured(c.do)} {
					for _, encoding := range []string{"", "identity"} {
						got := seen(t, http2, strings.NewReader("amount=900"), front, func(r *http.Request) {
							if encoding != "" {
								r.Header.Set("Content-Encoding", encoding)
							}
						})
						if got != c.known {
							t.Errorf("%s, a length%s, encoding %q: %q, want %q", proto, what, encoding, got, c.known)
						}
					}
				}
			}
		})
	}
}

// A client that sends an empty body in chunks is no mistake of the server.
func TestAnEmptyBodyOfUnknownLength(t *testing.T) {
	nothing := func(http.ResponseWriter, *http.Request) {}
	empty := func() io.Reader { return struct{ io.Reader }{strings.NewReader("")} }
	chunked := func(r *http.Request) { r.TransferEncoding, r.ContentLength = []string{"chunked"}, -1 }
	measure := func(_ http.ResponseWriter, r *http.Request) { *r = *r.WithContext(httpx.Measure(r)) }
	wraps := func(_ http.ResponseWriter, r *http.Request) { r.Body = wrapped{r.Body} }
	for name, c := range map[string]struct {
		front http.HandlerFunc
		want  string
	}{
		"as it came": {nothing, ""},
		"wrapped":    {wraps, "body-incomplete"},
		"measured":   {func(w http.ResponseWriter, r *http.Request) { measure(w, r); wraps(w, r) }, ""},
		"measured and read": {func(w http.ResponseWriter, r *http.Request) {
			measure(w, r)
			_, _ = io.Copy(io.Discard, r.Body)
		}, ""},
		"read": {func(_ http.ResponseWriter, r *http.Request) { _, _ = io.Copy(io.Discard, r.Body) }, "misconfigured"},
	} {
		if got := seen(t, false, empty(), c.front, chunked); got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}

// A length that was announced for another body says nothing of this one.
func TestALengthThatIsStaleRefusesNoShorterBody(t *testing.T) {
	for limit, want := range map[int64]error{6: nil, 4: adapter.ErrBodyLimit} {
		r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/", strings.NewReader("plain!"))
		r.ContentLength = 1000
		r.Header.Set("Content-Encoding", "secret")
		if b, err := (httpx.Request{Request: r}).Body(limit); !errors.Is(err, want) || err == nil && string(b) != "plain!" {
			t.Errorf("limit %d: %q, %v", limit, b, err)
		}
	}
}
