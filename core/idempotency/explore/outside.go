package explore

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"

	"github.com/interlock-go/interlock/core/idempotency"
	"github.com/interlock-go/interlock/core/idempotency/endpoint"
)

// effect is an effect that was carried out.
type effect struct {
	cause string // the request or message that it was carried out for
	name  string
}

// reply is the answer of a service outside.
type reply struct {
	status int
	header http.Header
	body   []byte
}

// RoundTrip sends a request to a service outside: to the handler of its host in [Service.Outside], or else to a fake
// that answers 200 and {}. An answer below 400 to a method that is not safe is an effect. The services deduplicate by
// the header Idempotency-Key, unless [Service.IgnoresKeys] names them: a repeated key gets the first such answer and has no effect. An error matches [ErrLost].
func (p *Process) RoundTrip(r *http.Request) (*http.Response, error) {
	var body []byte
	if r.Body != nil {
		var err error
		body, err = io.ReadAll(r.Body)
		_ = r.Body.Close()
		if err != nil {
			return nil, err
		}
	}
	method := r.Method
	if method == "" {
		method = http.MethodGet
	}
	name, cause := fmt.Sprintf("%s %s of %s", method, r.URL.Path, r.URL.Host), causeOf(r.Context())
	var got reply
	err := p.call(cause, name, func() error {
		got = p.world.answer(p, r, method, cause, name, body)
		return nil
	})
	if err != nil {
		return nil, err
	}
	return &http.Response{
		Status: fmt.Sprintf("%d %s", got.status, http.StatusText(got.status)), StatusCode: got.status,
		Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1, Header: got.header.Clone(), Request: r,
		Body: io.NopCloser(bytes.NewReader(got.body)), ContentLength: int64(len(got.body)),
	}, nil
}

// answer has a service outside answer a request.
func (w *World) answer(p *Process, r *http.Request, method, cause, name string, body []byte) reply {
	key, known := r.URL.Host+" "+method+" "+r.URL.Path, false
	if k, err := endpoint.ParseKey(r.Header.Values(idempotency.KeyHeader)); err == nil && k != "" && !slices.Contains(w.service.IgnoresKeys, r.URL.Host) {
		key, known = key+" "+k, true
	}
	w.mu.Lock()
	before, again := w.replies[key]
	w.mu.Unlock()
	if known && again {
		w.note(p.name, cause, name, "known by its key, and not carried out again")
		return before
	}
	got := reply{http.StatusOK, http.Header{"Content-Type": {"application/json"}}, []byte("{}")}
	if h := w.outside[r.URL.Host]; h != nil {
		in := r.Clone(r.Context())
		in.Body, in.RequestURI, in.Method = io.NopCloser(bytes.NewReader(body)), r.URL.RequestURI(), method
		rec := httptest.NewRecorder()
		h.ServeHTTP(rec, in)
		got = reply{rec.Code, rec.Header(), rec.Body.Bytes()}
	}
	switch method {
	case http.MethodGet, http.MethodHead, http.MethodOptions, http.MethodTrace, "QUERY":
		return got
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if got.status < http.StatusBadRequest {
		w.effects = append(w.effects, effect{cause, name})
		if known {
			w.replies[key] = got
		}
	}
	return got
}

// Count returns how many effects with a name there were so far: "POST /charge of bank", or the name given to [Effect].
func (w *World) Count(name string) (n int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, e := range w.effects {
		if e.name == name {
			n++
		}
	}
	return n
}
