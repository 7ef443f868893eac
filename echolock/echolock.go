package echolock

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"sync"

	"github.com/labstack/echo/v4"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/adapter"
	"github.com/interlock-go/interlock/internal/echox"
	"github.com/interlock-go/interlock/internal/httpx"
)

// Guard returns a middleware that runs the handler under a rule: alone
// ([core.Serialize]), together with others that share ([core.Share]), or within a
// limited number ([core.AtMost]). Put it in Use, on a group, or on a route (see the
// package comment). It is safe for concurrent use.
//
// Guard is the short form of [Config.ToMiddleware]. It panics if ToMiddleware returns
// an error: if rule is nil.
func Guard(rule *core.Guard, opts ...Option) echo.MiddlewareFunc {
	c := Config{Guard: rule}
	for _, opt := range opts {
		opt(&c)
	}
	m, err := c.ToMiddleware()
	if err != nil {
		panic(err)
	}
	return m
}

// Option sets a field of [Config] for the short forms, [Guard] and [Idempotent]. A
// function literal can set any field.
type Option func(*Config)

// Render sets the field Render of [Config]. Default, and if f is nil: [Problem].
func Render(f func(c echo.Context, refusal *core.Refusal) error) Option {
	return func(c *Config) { c.Render = f }
}

// Config holds all settings of the middleware, in the form of echo's own
// middleware. Its zero value has no Guard and is refused.
type Config struct {
	// Guard is the rule. Required by ToMiddleware; Idempotent ignores it.
	Guard *core.Guard

	// Skipper returns true for requests that pass without a lock, or without an
	// idempotency key. It has the type of echo's middleware.Skipper and must be
	// safe for concurrent use. Default, and if nil: no request passes.
	Skipper func(c echo.Context) bool

	// Render renders all refusals. The middleware calls it also for
	// reason.Canceled, when the client has left and reads no response. The
	// middleware returns what Render returns: an error for echo's error handler,
	// or nil if Render has written the response itself. Render must be safe for
	// concurrent use. A response that Render writes itself needs the mark of its result
	// ([idempotency.Result]), or a client takes it for a response of a proxy. Default, and if
	// nil: [Problem].
	Render func(c echo.Context, refusal *core.Refusal) error
}

// ToMiddleware returns the middleware, or [core.ErrConfig] if Guard is nil.
//
// While the handler runs, c.Request carries the lease's context, and the Writer of
// the response notes whether an answer has begun. Afterwards both are
// the original ones again. An error of the handler is returned after the release:
// echo renders it outside the lock, as it renders the errors of all handlers. If
// the lease was lost and nothing is written, the middleware returns the refusal in
// place of that error, with the error joined to Err of the [core.Refusal]. A handler
// that wants its own response to count must write it, or call c.Error.
func (c Config) ToMiddleware() (echo.MiddlewareFunc, error) {
	if c.Guard == nil {
		return nil, fmt.Errorf("%w: echolock.Config without a Guard; core.Serialize makes one", core.ErrConfig)
	}
	if c.Render == nil {
		c.Render = Problem
	}
	known := new(sync.Map)
	return func(next echo.HandlerFunc) echo.HandlerFunc {
		return func(ec echo.Context) (err error) {
			if c.Skipper != nil && c.Skipper(ec) {
				return next(ec)
			}
			r := ec.Request()
			q := request{httpx.Request{Request: r}, ec, known}
			var tracked *httpx.Writer
			refusal := c.Guard.Do(r.Context(), q, func(ctx context.Context) bool {
				tracked, err = track(ctx, ec, next)
				return tracked.Answered
			})
			if refusal == nil {
				if err != nil && !tracked.Answered {
					tracked.MarkStuck(statusOf(err)) // echo renders it outside
				}
				return err
			}
			tracked.Restore()
			return c.refuse(ec, refusal, err)
		}
	}, nil
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
// e.Pre(echolock.MeasureBody). It is safe for concurrent use.
func MeasureBody(next echo.HandlerFunc) echo.HandlerFunc {
	return func(c echo.Context) error { return httpx.Serve(httpx.Measure(c.Request()), c, next) }
}

// track runs the handler under ctx with an [httpx.Writer], and returns that writer,
// which notes whether an answer has begun. Response.Committed is not enough for
// that: a flush or a hijacked connection does not set it.
func track(ctx context.Context, ec echo.Context, next echo.HandlerFunc) (*httpx.Writer, error) {
	res := ec.Response()
	tracked := &httpx.Writer{ResponseWriter: res.Writer, Ctx: ctx}
	res.Writer = tracked.ForHandler()
	defer func() {
		res.Writer = tracked.ResponseWriter
		if tracked.Refused {
			// echo believes that this response was sent, but the tracker dropped it.
			res.Status, res.Size, res.Committed = http.StatusOK, 0, false
		}
	}()
	return tracked, httpx.Serve(ctx, ec, next)
}

// statusOf returns the status that echo gives an error.
func statusOf(err error) int {
	var known *echo.HTTPError
	if errors.As(err, &known) {
		return known.Code
	}
	return http.StatusInternalServerError
}

// refuse answers with a refusal in place of the handler, which may have returned
// err.
func (c Config) refuse(ec echo.Context, refusal *core.Refusal, err error) error {
	if err != nil {
		refusal.Err = errors.Join(refusal.Err, err)
	}
	return c.Render(ec, refusal)
}

// request is the [core.Request] of echo.
type request struct {
	httpx.Request
	c     echo.Context
	known *sync.Map // of registered
}

// Route returns the route's pattern.
func (q request) Route() (string, bool) { return q.c.Path(), echox.Routed(q.c, q.known) }

// Param returns a path parameter. If a request has a raw path, echo matches that
// path, and the values are still escaped: Param decodes them.
func (q request) Param(name string) (string, error) {
	i := slices.Index(q.c.ParamNames(), name)
	switch {
	case i < 0 && q.c.Path() == "":
		return "", fmt.Errorf("%w: echo has not matched the request yet: Use, not Pre", adapter.ErrNoParam)
	case i < 0:
		return "", adapter.ErrNoParam
	}
	return httpx.Unescape(q.URL, q.c.ParamValues()[i])
}

// Value returns the value that c.Set stored, else the value of the request's context.
func (q request) Value(key any) any { return httpx.Value(q.c, q.Request.Request, key) }

// Native returns the echo.Context.
func (q request) Native() any { return q.c }

// Problem returns a refusal as an *[echo.HTTPError], so that the application's error
// handler decides on the answer. [errors.As] finds a *[RefusalError] in it, and
// [errors.Is] finds the sentinels of core. Problem has set Cache-Control on the
// response, and Retry-After, in seconds, if [core.Refusal.Retryable] returns true.
// echo's default error handler, and any other that passes the error's Message to
// c.JSON, sends problem details (RFC 9457) of type urn:interlock:problem:<reason>
// with fixed text and their own Content-Type, or the form of [core.Refusal.Profile].
//
// If the client has left (reason.Canceled), the error has code 499, and
// Problem marks the response as committed, so that nothing is written. Problem is
// the default of Render in [Config]; a function for Render can call it.
func Problem(c echo.Context, refusal *core.Refusal) error {
	res := c.Response()
	status, _ := httpx.Problem(refusal, res.Header())
	if status == 0 {
		status = httpx.ClientClosedRequest
		res.Status, res.Committed = status, true
	}
	// An error handler that answers with a page must not inherit the type.
	res.Header().Del(echo.HeaderContentType)
	message := httpx.Message{Refusal: refusal, Header: res.Header()}
	return &echo.HTTPError{Code: status, Message: message, Internal: &RefusalError{refusal}}
}

// RefusalError is a refusal as an error, for error handlers. It is the Internal
// field of the error that [Problem] returns.
type RefusalError struct{ *core.Refusal }

// Error returns a text for logs, such as the logs of echo's middleware. It contains
// hashes in place of keys, and no addresses of servers (see
// [core.Refusal.LogError]).
func (e *RefusalError) Error() string { return e.String() }

// Unwrap returns Err of the [core.Refusal]. Its text may contain keys and addresses.
func (e *RefusalError) Unwrap() error { return e.Err }
