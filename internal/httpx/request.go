// Package httpx is what the adapters of net/http, gin and echo share: reading a
// request for its key, seeing whether it was answered, and the one table that
// turns a refusal into a response.
package httpx

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"net/url"
	"strings"

	"github.com/interlock-go/interlock/core"
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

// Body returns the body, and puts what it has read in front of the rest, so
// that whoever comes later reads it whole. It is read once, into one buffer that
// all share: nobody may write to it.
func (q Request) Body(limit int64) ([]byte, error) {
	body := q.Request.Body
	if body == nil || body == http.NoBody {
		return nil, nil
	}
	if w, ok := body.(*whole); ok && w.Len() == len(w.all) { // asked a second time
		if int64(len(w.all)) > limit {
			return nil, core.ErrBodyLimit
		}
		return w.all, nil
	}
	if q.ContentLength > limit {
		return nil, core.ErrBodyLimit // not a byte of it need be waited for
	}
	// Room for all of it, and for the read that finds its end, is made at once:
	// a buffer that grows copies. What a client announces and does not send
	// yet costs no more than a small body.
	room := int(min(max(q.ContentLength, 0), roomAtOnce)) + bytes.MinRead
	buf := bytes.NewBuffer(make([]byte, 0, room))
	// One byte more than the limit tells a body of that length from a longer.
	_, err := buf.ReadFrom(io.LimitReader(body, min(limit, math.MaxInt64-1)+1))
	b := buf.Bytes()
	var outer *http.MaxBytesError // somebody in front of us has a smaller limit
	if err == nil && int64(len(b)) <= limit {
		q.Request.Body = &whole{*bytes.NewReader(b), body, b}
		return b, nil
	}
	q.Request.Body = struct {
		io.Reader
		io.Closer
	}{io.MultiReader(bytes.NewReader(b), body), body}
	if errors.As(err, &outer) || int64(len(b)) > limit {
		return nil, core.ErrBodyLimit
	}
	return nil, fmt.Errorf("%w: reading the body: %w", core.ErrKey, err)
}

// roomAtOnce bounds the room that is made for a body before it has come.
const roomAtOnce = 1 << 20

// whole is a body that was read to its end, to be read again.
type whole struct {
	bytes.Reader
	io.Closer
	all []byte
}

// Value returns what the request's context holds.
func (q Request) Value(key any) any { return q.Context().Value(key) }

// Native returns the *http.Request.
func (q Request) Native() any { return q.Request }

// HandBack gives the original of a request back what its derived copy, which ran
// with the lease's context, has that the server must know: the multipart form
// that a handler parsed. The server removes the temporary files of the requests
// it made, not of their copies. Everything else of the original is as it was,
// for the middleware in front.
func HandBack(original, derived *http.Request) {
	if derived.MultipartForm != nil {
		original.MultipartForm = derived.MultipartForm
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
// remaining path, {name...}, is none: it holds something else in each framework.
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
