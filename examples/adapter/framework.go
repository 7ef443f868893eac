// Package returnlock is an adapter for a framework that Interlock does not know: its handlers
// return their response. It uses public packages only, and is held by the same tests as the
// adapters of Interlock. Copy it to begin your own.
package returnlock

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
)

// Request is a request of the framework. Its body has arrived.
type Request struct {
	*http.Request
	Pattern string
	Params  map[string]string
	Payload []byte
}

// Response is the response that a handler returns. A status of 0 is none: the client has gone.
type Response struct {
	Status int
	Header http.Header
	Body   []byte
}

// Handler handles a request.
type Handler func(ctx context.Context, r *Request) Response

// Middleware is a handler around another one.
type Middleware func(next Handler) Handler

// maxBody is the length of the longest body.
const maxBody = 16 << 20

// Route serves a handler at a pattern such as /accounts/{id}, the first middleware outermost. Like
// many frameworks, it makes a response of a panic of the handler.
func Route(pattern string, h Handler, chain ...Middleware) http.Handler {
	handle := func(ctx context.Context, r *Request) (resp Response) {
		defer func() {
			if thrown := recover(); thrown != nil {
				resp = Response{Status: http.StatusInternalServerError, Body: fmt.Append(nil, thrown)}
			}
		}()
		return h(ctx, r)
	}
	for i := len(chain) - 1; i >= 0; i-- {
		handle = chain[i](handle)
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		params, ok := match(pattern, r.URL.EscapedPath())
		if !ok {
			http.NotFound(w, r)
			return
		}
		body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
		if err != nil {
			http.Error(w, "the body is too long, or did not arrive whole", http.StatusBadRequest)
			return
		}
		resp := handle(r.Context(), &Request{r, pattern, params, body})
		for name, values := range resp.Header {
			w.Header()[name] = values
		}
		if resp.Status != 0 {
			w.WriteHeader(resp.Status)
		}
		_, _ = w.Write(resp.Body)
	})
}

// match matches an escaped path with a pattern, and returns the values of the parameters.
func match(pattern, path string) (params map[string]string, ok bool) {
	names, values := strings.Split(pattern, "/"), strings.Split(path, "/")
	if len(names) != len(values) {
		return nil, false
	}
	params = make(map[string]string)
	for i, name := range names {
		value, err := url.PathUnescape(values[i])
		if param, is := strings.CutPrefix(name, "{"); is {
			params[strings.TrimSuffix(param, "}")] = value
			name = value
		}
		if err != nil || name != value {
			return nil, false
		}
	}
	return params, true
}
