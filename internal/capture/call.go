package capture

import (
	"net/http"
	"net/url"
	"strings"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/idempotency"
	"github.com/interlock-go/interlock/core/idempotency/endpoint"
	"github.com/interlock-go/interlock/core/reason"
)

// Call is an HTTP request for the engine: what a guard asks of it, the adapter
// knows; the rest is the same in every framework.
type Call struct {
	core.Request
	HTTP *http.Request
}

// NewCall returns the Call of a request that comes to an engine. response is the header of
// the answer, also of a replay and of a refusal: where the profile of the engine demands it,
// NewCall puts the key there.
func NewCall(engine *idempotency.Engine, request core.Request, r *http.Request, response http.Header) Call {
	c := Call{request, r}
	if engine.Profile() == reason.AgenticCommerce && r.Method == http.MethodPost {
		if _, err := c.Key(); err == nil {
			response.Set(idempotency.KeyHeader, r.Header.Get(idempotency.KeyHeader))
		}
	}
	return c
}

// Protocol returns HTTP.
func (c Call) Protocol() string { return endpoint.HTTP }

// Key reads the lines of the header Idempotency-Key.
func (c Call) Key() (string, error) {
	return endpoint.ParseKey(c.HTTP.Header.Values(idempotency.KeyHeader))
}

// Target returns method, path and query. The path has its values, and is the
// same however the client has escaped them.
func (c Call) Target() (method, path, query string) {
	return c.HTTP.Method, canonical(c.HTTP.URL), c.HTTP.URL.RawQuery
}

// Origin returns the host, and path and query of the request line: middleware in front of a
// handler may have changed the URL (http.StripPrefix).
func (c Call) Origin() (host, path, query string) {
	u, err := url.ParseRequestURI(c.HTTP.RequestURI)
	if err != nil { // the request was not read from a connection
		u = c.HTTP.URL
	}
	return c.HTTP.Host, canonical(u), u.RawQuery
}

// canonical is the decoded path, except that a slash that was escaped stays so
// (and with it the percent sign): it is part of a value, and /a%2Fb is not the
// resource /a/b where a router tells them apart.
func canonical(u *url.URL) string {
	if u.RawPath == "" { // the default encoding, which escapes no slash
		return strings.ReplaceAll(u.Path, "%", "%25")
	}
	segments := strings.Split(u.EscapedPath(), "/")
	for i, s := range segments {
		if v, err := url.PathUnescape(s); err == nil { // it always is: EscapedPath is valid
			s = strings.ReplaceAll(strings.ReplaceAll(v, "%", "%25"), "/", "%2F")
		}
		segments[i] = s
	}
	return strings.Join(segments, "/")
}
