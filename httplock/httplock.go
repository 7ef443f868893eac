package httplock

import (
	"context"
	"fmt"
	"net/http"
	"strings"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/internal/httpx"
)

// Serialize returns a middleware that runs the handler under the guard's lock.
// It goes around a handler, inside the router: see the package comment. It
// panics if guard is nil, as http.ServeMux does on a nil handler.
func Serialize(guard *core.Guard, opts ...Option) func(http.Handler) http.Handler {
	if guard == nil {
		panic("httplock: Serialize with a nil guard; core.Serialize makes one")
	}
	o := newOptions(opts)
	return func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			q := request{httpx.Request{Request: r}, o}
			var tracked *httpx.Writer
			refusal := guard.Do(r.Context(), q, func(ctx context.Context) bool {
				tracked = &httpx.Writer{ResponseWriter: w, Ctx: ctx}
				serve(ctx, next, tracked.ForHandler(), r)
				return tracked.Answered
			})
			if refusal != nil {
				tracked.Restore()
				o.render(w, r, refusal)
			}
		})
	}
}

// serve runs the handler under ctx.
func serve(ctx context.Context, next http.Handler, w http.ResponseWriter, r *http.Request) {
	derived := r.WithContext(ctx)
	defer httpx.HandBack(r, derived)
	next.ServeHTTP(w, derived)
}

// request is net/http's request for the guard.
type request struct {
	httpx.Request
	*options
}

// Route returns r.Pattern. net/http has no routes that did not match: where no
// router came first, the request is whatever the handler takes it for, and a
// guard that needs no parameter can serialize it.
func (q request) Route() (string, bool) { return q.Pattern, true }

// Param returns a path value. The pattern is asked about what is in doubt: an
// empty value may be a parameter that the route does not have, and a remaining
// path ({name...}) holds something else in every framework. What a ParamFunc has
// found is in no doubt: its router may be one below the pattern.
func (q request) Param(name string) (string, error) {
	var v string
	if q.param != nil {
		v = q.param(q.Request.Request, name)
	} else {
		v = q.PathValue(name)
	}
	switch doubt := v == "" || q.param == nil && strings.Contains(q.Pattern, "...}"); {
	case doubt && q.Pattern == "":
		return "", fmt.Errorf("%w: no router has matched the request yet: wrap handlers, not the router", core.ErrNoParam)
	case doubt && !httpx.Names(q.Pattern, name):
		return "", core.ErrNoParam
	case q.raw:
		return httpx.Unescape(q.URL, v)
	}
	return v, nil
}

// Problem is how refusals are rendered by default: problem details (RFC 9457)
// of type urn:interlock:problem:<reason> with fixed text, and Retry-After where
// the handler did not run and trying again makes sense. To a client that has
// gone it writes nothing. A function for Render can fall back on it.
func Problem(w http.ResponseWriter, _ *http.Request, refusal *core.Refusal) {
	httpx.Write(w, refusal)
}

// Option changes how requests are read and refusals are written.
type Option func(*options)

type options struct {
	render func(http.ResponseWriter, *http.Request, *core.Refusal)
	param  func(*http.Request, string) string // nil: PathValue
	raw    bool
}

func newOptions(opts []Option) *options {
	o := &options{render: Problem}
	for _, opt := range opts {
		opt(o)
	}
	return o
}

// Render replaces the rendering of refusals, all of them: core.ReasonCanceled
// too, where nobody is left to read. Default, and for nil: Problem.
func Render(f func(w http.ResponseWriter, r *http.Request, refusal *core.Refusal)) Option {
	return func(o *options) {
		if f != nil {
			o.render = f
		}
	}
}

// ParamFunc says how a path parameter is found, for routers that do not call
// http.Request.SetPathValue. It returns "" for one that the route does not have,
// and for the remaining path of a wildcard, which is no parameter: it holds
// something else in every framework. Default, and for nil: http.Request.PathValue, right for http.ServeMux and chi.
func ParamFunc(f func(r *http.Request, name string) string) Option {
	return func(o *options) {
		if f != nil {
			o.param = f
		}
	}
}

// RawParams says that the router hands out parameters still escaped when the
// request has a raw path (URL.RawPath), as chi does: they are decoded then.
// Without it /accounts/%41 and /accounts/A are two resources. Default: the
// parameters are decoded, as http.ServeMux has them; with it they would be
// decoded twice.
func RawParams() Option {
	return func(o *options) { o.raw = true }
}
