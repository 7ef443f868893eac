package httplock

import (
	"context"
	"fmt"
	"net/http"
	"strings"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/adapter"
	"github.com/interlock-go/interlock/internal/httpx"
)

// Guard returns a middleware that runs the handler under a rule: alone
// ([core.Serialize]), together with others that share ([core.Share]), or within a
// limited number ([core.AtMost]). Put the middleware around a handler, inside the
// router (see the package comment). It is safe for concurrent use and may wrap any
// number of handlers.
//
// Guard panics if rule is nil, as [http.ServeMux] does on a nil handler.
func Guard(rule *core.Guard, opts ...Option) func(http.Handler) http.Handler {
	if rule == nil {
		panic("httplock: Guard with a nil rule; core.Serialize makes one")
	}
	o := newOptions(opts)
	return func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			q := request{httpx.Request{Request: r}, o}
			var tracked *httpx.Writer
			refusal := rule.Do(r.Context(), q, func(ctx context.Context) bool {
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

// MeasureBody is a middleware that makes it known how much of the body of a request was
// read, for [Idempotent] and for rules that need the body ([core.ReadBody],
// [core.KeyFunc]) further in. They refuse a body if middleware in front of them has read a
// part: the rest could be the same in two different requests. The length that the client
// announced tells them. It does not where no length was announced and the request came
// over HTTP/2, or other middleware has wrapped the body, or where the length is the length
// of a compressed body.
//
// Put MeasureBody in front of all that reads bodies, and after all that decompresses them. It
// is safe for concurrent use.
func MeasureBody(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		serve(httpx.Measure(r), next, w, r)
	})
}

// serve runs the handler under ctx.
func serve(ctx context.Context, next http.Handler, w http.ResponseWriter, r *http.Request) {
	derived := r.WithContext(ctx)
	defer httpx.HandBack(r, derived)
	next.ServeHTTP(w, derived)
}

// request is the [core.Request] of net/http.
type request struct {
	httpx.Request
	*options
}

// Route returns r.Pattern. In net/http every request counts as matched: without a
// router in front there is no pattern, and a rule that needs no parameter can
// still serialize the request.
func (q request) Route() (string, bool) { return q.Pattern, true }

// Param returns a path value. Two cases are in doubt, and the pattern decides
// them: the route may not have the parameter of an empty value, and a remaining
// path ({name...}) holds different text in each framework. A value that a
// ParamFunc found is not in doubt: its router may be below the pattern.
func (q request) Param(name string) (string, error) {
	var v string
	if q.param != nil {
		v = q.param(q.Request.Request, name)
	} else {
		v = q.PathValue(name)
	}
	switch doubt := v == "" || q.param == nil && strings.Contains(q.Pattern, "...}"); {
	case doubt && q.Pattern == "":
		return "", fmt.Errorf("%w: no router has matched the request yet: wrap handlers, not the router", adapter.ErrNoParam)
	case doubt && !httpx.Names(q.Pattern, name):
		return "", adapter.ErrNoParam
	case q.raw:
		return httpx.Unescape(q.URL, v)
	}
	return v, nil
}

// Problem writes a refusal in the form of its profile ([core.Refusal.Profile]). Without a
// profile the answer is problem details (RFC 9457) of type urn:interlock:problem:<reason>
// with fixed text. It sets Retry-After, in seconds, if [core.Refusal.Retryable] returns
// true. If the client has left ([reason.Canceled]), it writes nothing. Problem is the
// default of [Render]; a function for Render can call it.
func Problem(w http.ResponseWriter, _ *http.Request, refusal *core.Refusal) {
	httpx.Write(w, refusal)
}

// Option configures [Guard] and [Idempotent]: how they read requests and
// write refusals. Options do not change after construction.
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

// Render sets the function that writes all refusals. The middleware calls it also
// for [reason.Canceled], when the client has left and reads no response. f must
// be safe for concurrent use. A response that f writes itself needs the mark of its result
// ([idempotency.Result]), or a client takes it for a response of a proxy. Default, and if f is
// nil: [Problem].
func Render(f func(w http.ResponseWriter, r *http.Request, refusal *core.Refusal)) Option {
	return func(o *options) {
		if f != nil {
			o.render = f
		}
	}
}

// ParamFunc sets the function that returns a path parameter, for routers that do
// not call [http.Request.SetPathValue]. f returns "" if the route does not have the
// parameter. It also returns "" for the remaining path of a wildcard, which is not
// a parameter: it holds different text in each framework. f must be safe for
// concurrent use. Default, and if f is nil: [http.Request.PathValue], which is
// right for [http.ServeMux] and chi.
func ParamFunc(f func(r *http.Request, name string) string) Option {
	return func(o *options) {
		if f != nil {
			o.param = f
		}
	}
}

// RawParams makes the middleware decode path parameters. Use it for a router that
// returns them in escaped form when the request has a raw path (RawPath of
// [net/url.URL]), as chi does. Without the option /accounts/%41 and /accounts/A
// would be two resources there. Default: parameters are decoded already, as
// [http.ServeMux] returns them; with the option they would be decoded twice.
func RawParams() Option {
	return func(o *options) { o.raw = true }
}
