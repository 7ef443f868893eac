// Package httpx is the common code of the adapters of net/http, gin and echo:
// reading a request for its key, seeing whether it was answered, and the one table
// that turns a refusal into a response.
package httpx

import (
	"iter"
	"net/http"
	"net/url"
	"strings"
)

// Request is the part of core.Request that every framework on net/http has in
// common. An adapter embeds it and adds Route and Param, and Native where its
// own request is another.
type Request struct{ *http.Request }

// Header returns the values of a header. Host counts as one, though net/http
// keeps it elsewhere.
func (q Request) Header(name string) []string {
	if name == "Host" && q.Host != "" {
		return []string{q.Host}
	}
	return q.Request.Header.Values(name)
}

// Query returns the values of a query parameter as handlers see them by
// URL.Query: pairs that are malformed do not exist for either.
func (q Request) Query(name string) []string { return q.URL.Query()[name] }

// Value returns a value of the request's context.
func (q Request) Value(key any) any { return q.Context().Value(key) }

// ReadsOnly reports whether the method is safe (RFC 9110, 9.2.1), also QUERY
// (draft-ietf-httpbis-safe-method-w-body).
func (q Request) ReadsOnly() bool {
	switch q.Method {
	case http.MethodGet, http.MethodHead, http.MethodOptions, http.MethodTrace, "QUERY":
		return true
	}
	return false
}

// Native returns the *http.Request.
func (q Request) Native() any { return q.Request }

// HandBack returns to the original request what was noted on the copy with the lease's context, on which
// the handler ran. The server must know the multipart form that the handler parsed: it removes the
// temporary files of the requests it made, not of their copies. Middleware in front, such as an access log, must
// know the route that a router behind has matched, as it would without the copy: the pattern, and the
// path values that the pattern names. Everything else of the original is as it was.
func HandBack(original, derived *http.Request) {
	if derived.MultipartForm != nil {
		original.MultipartForm = derived.MultipartForm
	}
	if derived.Pattern == "" || derived.Pattern == original.Pattern {
		return // no router has matched the copy
	}
	original.Pattern = derived.Pattern
	for name := range names(derived.Pattern) {
		if v := derived.PathValue(name); v != original.PathValue(name) {
			original.SetPathValue(name, v)
		}
	}
}

// names are the names of the path values of a route pattern of http.ServeMux or chi. A regexp of chi may give
// other texts, too, which are no names.
func names(pattern string) iter.Seq[string] {
	return func(yield func(string) bool) {
		for rest := pattern; ; {
			_, after, found := strings.Cut(rest, "{")
			end := strings.IndexAny(after, ":}")
			if !found || end < 0 {
				break
			}
			if !yield(strings.TrimSuffix(after[:end], "...")) {
				return
			}
			rest = after
		}
		if strings.HasSuffix(pattern, "*") {
			yield("*") // the remaining path in chi
		}
	}
}

// Unescape decodes a path parameter of a router that matches the raw path when
// there is one (echo, chi): only then is the value still escaped. Routers on the
// decoded path (http.ServeMux, gin) have decoded it, and doing it again would
// make one resource of two.
func Unescape(u *url.URL, value string) (string, error) {
	if u.RawPath == "" {
		return value, nil
	}
	return url.PathUnescape(value)
}

// Names reports whether a route pattern in the syntax of http.ServeMux or chi
// names a parameter that matches one segment: {name}, or {name:regexp}. The
// remaining path, {name...}, does not count: each framework stores a different
// value there.
func Names(pattern, name string) bool {
	for {
		_, after, found := strings.Cut(pattern, "{"+name)
		switch {
		case !found:
			return false
		case after != "" && (after[0] == '}' || after[0] == ':'):
			return true
		}
		pattern = after
	}
}
