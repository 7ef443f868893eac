package ginlock

import (
	"context"
	"strings"

	"github.com/gin-gonic/gin"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/adapter"
	"github.com/interlock-go/interlock/core/reason"
	"github.com/interlock-go/interlock/internal/httpx"
)

// Guard returns a middleware that runs the handlers after it under a rule: alone
// ([core.Serialize]), together with others that share ([core.Share]), or within a
// limited number ([core.AtMost]). Put it on a route, on a group, or in Use (see the
// package comment). It is safe for concurrent use.
//
// While the handlers run, c.Request carries the lease's context. Afterwards
// c.Request is the original request again. If the middleware answers with a
// refusal, because the handlers did not run or gave no answer before the lease was
// lost, it aborts the chain and adds the reason to c.Errors.
//
// Guard panics if rule is nil, as gin does on a nil handler.
func Guard(rule *core.Guard, opts ...Option) gin.HandlerFunc {
	if rule == nil {
		panic("ginlock: Guard with a nil rule; core.Serialize makes one")
	}
	o := newOptions(opts)
	return func(c *gin.Context) {
		r, w := c.Request, c.Writer
		var tracked *tracker
		refusal := rule.Do(r.Context(), request{httpx.Request{Request: r}, c}, func(ctx context.Context) bool {
			tracked = track(ctx, c)
			return w.Written()
		})
		if refusal != nil {
			// A writer that a handler put in front may be closed already.
			c.Writer = w
			tracked.restore()
			o.refuse(c, refusal)
		}
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
// Put MeasureBody in front of all that reads bodies, and after all that decompresses them:
// r.Use(ginlock.MeasureBody). It is safe for concurrent use.
func MeasureBody(c *gin.Context) { next(httpx.Measure(c.Request), c) }

// track runs the following handlers under ctx with a tracker as their writer, and
// returns the tracker.
func track(ctx context.Context, c *gin.Context) *tracker {
	w := c.Writer
	tracked := &tracker{ResponseWriter: w, ctx: ctx}
	c.Writer = tracked
	defer func() {
		if c.Writer == tracked { // else a handler has replaced the writer for good
			c.Writer = w
		}
	}()
	next(ctx, c)
	return tracked
}

// next runs the following handlers under ctx.
func next(ctx context.Context, c *gin.Context) {
	r := c.Request
	c.Request = r.WithContext(ctx)
	defer func() {
		// Take the form from c.Request, not from the copy made above: in gin,
		// middleware replaces c.Request for good, and the last request has the form.
		httpx.HandBack(r, c.Request)
		c.Request = r
	}()
	c.Next()
}

// request is the [core.Request] of gin.
type request struct {
	httpx.Request
	c *gin.Context
}

// Route returns the route's pattern. gin has no pattern in NoRoute and NoMethod
// handlers.
func (q request) Route() (string, bool) { return q.c.FullPath(), q.c.FullPath() != "" }

// Param returns a path parameter, which gin has decoded. A catch-all (*path) is not
// a parameter: it holds different text in each framework.
func (q request) Param(name string) (string, error) {
	v, ok := q.c.Params.Get(name)
	if !ok || strings.HasSuffix(q.c.FullPath(), "/*"+name) {
		return "", adapter.ErrNoParam
	}
	return v, nil
}

// Value returns the value that c.Set stored, else the value of the request's context. The
// keys of gin before 1.12 are strings.
func (q request) Value(key any) any {
	var v any
	var ok bool
	switch c := any(q.c).(type) {
	case interface{ Get(key any) (any, bool) }:
		v, ok = c.Get(key)
	case interface{ Get(key string) (any, bool) }:
		if name, isName := key.(string); isName {
			v, ok = c.Get(name)
		}
	}
	if ok {
		return v
	}
	return q.Request.Value(key)
}

// Body returns the body. It also works after a handler in front has read the body
// with ShouldBindBodyWith, which keeps the bytes in the context.
func (q request) Body(limit int64) ([]byte, error) {
	kept, _ := q.c.Get(gin.BodyBytesKey)
	b, _ := kept.([]byte)
	return q.BodyOr(limit, b)
}

// Native returns the *gin.Context.
func (q request) Native() any { return q.c }

// Problem writes a refusal in the form of its profile ([core.Refusal.Profile]). Without a
// profile the answer is problem details (RFC 9457) of type urn:interlock:problem:<reason>
// with fixed text. It sets Retry-After, in seconds, if [core.Refusal.Retryable] returns
// true. If the client has left ([reason.Canceled]), it only sets status 499, which access
// logs show: gin writes a header for every request. Problem is the default of [Render]; a
// function for Render can call it.
func Problem(c *gin.Context, refusal *core.Refusal) {
	if refusal.Reason == reason.Canceled {
		c.Status(httpx.ClientClosedRequest)
	}
	httpx.Write(c.Writer, refusal)
}

// Option configures [Guard] and [Idempotent]: how they write refusals. Options
// do not change after construction.
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

// refuse answers with a refusal in place of the handlers.
func (o *options) refuse(c *gin.Context, refusal *core.Refusal) {
	c.Abort()
	// gin's logger prints the error with its meta.
	_ = c.Error(refusal.LogError()).SetMeta(refusal)
	o.render(c, refusal)
}

// Render sets the function that writes all refusals. The middleware has aborted the
// chain before it calls f. It calls f also for [reason.Canceled], when the
// client has left and reads no response. f must be safe for concurrent use. A response that f
// writes itself needs the mark of its result ([idempotency.Result]), or a client takes it for a
// response of a proxy. Default, and if f is nil: [Problem].
func Render(f func(c *gin.Context, refusal *core.Refusal)) Option {
	return func(o *options) {
		if f != nil {
			o.render = f
		}
	}
}
