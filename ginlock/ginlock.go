package ginlock

import (
	"context"
	"strings"

	"github.com/gin-gonic/gin"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/internal/httpx"
)

// Serialize returns a middleware that runs the handlers after it under the
// guard's lock, on a route, on a group, or in Use: see the package comment. It
// panics if guard is nil, as gin does on a nil handler.
//
// While they run, c.Request carries the lease's context; then it is the original
// again. Where a refusal is answered instead of them, or instead of an answer
// that they did not give, the chain is aborted and c.Errors has the reason.
func Serialize(guard *core.Guard, opts ...Option) gin.HandlerFunc {
	if guard == nil {
		panic("ginlock: Serialize with a nil guard; core.Serialize makes one")
	}
	o := newOptions(opts)
	return func(c *gin.Context) {
		r, w := c.Request, c.Writer
		var tracked *tracker
		refusal := guard.Do(r.Context(), request{httpx.Request{Request: r}, c}, func(ctx context.Context) bool {
			tracked = track(ctx, c)
			return w.Written()
		})
		if refusal != nil {
			// A writer that a handler has put in front may be closed by now.
			c.Writer = w
			tracked.restore()
			o.refuse(c, refusal)
		}
	}
}

// track runs the handlers that follow under ctx, with a writer of its own, which
// it returns.
func track(ctx context.Context, c *gin.Context) *tracker {
	w := c.Writer
	tracked := &tracker{ResponseWriter: w, ctx: ctx}
	c.Writer = tracked
	defer func() {
		if c.Writer == tracked { // else somebody's who has put one in front for good
			c.Writer = w
		}
	}()
	next(ctx, c)
	return tracked
}

// next runs the handlers that follow under ctx.
func next(ctx context.Context, c *gin.Context) {
	r := c.Request
	c.Request = r.WithContext(ctx)
	defer func() {
		// Not of the copy made above: in gin, middleware replaces c.Request for
		// good, and the last one has the form.
		httpx.HandBack(r, c.Request)
		c.Request = r
	}()
	c.Next()
}

// request is gin's request for the guard.
type request struct {
	httpx.Request
	c *gin.Context
}

// Route returns the route's pattern, which gin has for none of its NoRoute and
// NoMethod handlers.
func (q request) Route() (string, bool) { return q.c.FullPath(), q.c.FullPath() != "" }

// Param returns a path parameter, which gin has decoded. A catch-all (*path) is
// none: it holds something else in every framework.
func (q request) Param(name string) (string, error) {
	v, ok := q.c.Params.Get(name)
	if !ok || strings.HasSuffix(q.c.FullPath(), "/*"+name) {
		return "", core.ErrNoParam
	}
	return v, nil
}

// Value returns what c.Set has put there, else what the request's context holds.
func (q request) Value(key any) any {
	if v, ok := q.c.Get(key); ok {
		return v
	}
	return q.Request.Value(key)
}

// Body returns the body, also where a handler in front has read it with
// ShouldBindBodyWith, which keeps it in the context.
func (q request) Body(limit int64) ([]byte, error) {
	kept, _ := q.c.Get(gin.BodyBytesKey)
	b, _ := kept.([]byte)
	return q.BodyOr(limit, b)
}

// Native returns the *gin.Context.
func (q request) Native() any { return q.c }

// Problem is how refusals are rendered by default: problem details (RFC 9457)
// of type urn:interlock:problem:<reason> with fixed text, and Retry-After where
// the handler did not run and trying again makes sense. For a client that has
// gone it only sets status 499, which access logs show: gin writes a header for
// every request. A function for Render can fall back on it.
func Problem(c *gin.Context, refusal *core.Refusal) {
	if refusal.Reason == core.ReasonCanceled {
		c.Status(httpx.ClientClosedRequest)
	}
	httpx.Write(c.Writer, refusal)
}

// Option changes how refusals are written.
type Option func(*options)

type options struct {
	render func(*gin.Context, *core.Refusal)
}

func newOptions(opts []Option) *options {
	o := &options{render: Problem}
	for _, opt := range opts {
		opt(o)
	}
	return o
}

// refuse answers a refusal instead of the handlers.
func (o *options) refuse(c *gin.Context, refusal *core.Refusal) {
	c.Abort()
	// gin's logger prints it, with its meta.
	_ = c.Error(refusal.LogError()).SetMeta(refusal)
	o.render(c, refusal)
}

// Render replaces the rendering of refusals, all of them: core.ReasonCanceled
// too, where nobody is left to read. The chain is aborted already. Default, and
// for nil: Problem.
func Render(f func(c *gin.Context, refusal *core.Refusal)) Option {
	return func(o *options) {
		if f != nil {
			o.render = f
		}
	}
}
