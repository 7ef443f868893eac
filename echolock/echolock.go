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
	"github.com/interlock-go/interlock/internal/echox"
	"github.com/interlock-go/interlock/internal/httpx"
)

// Serialize returns a middleware that runs the handler under the guard's lock,
// in Use, on a group, or on a route: see the package comment. It is short for
// Config and panics where ToMiddleware returns an error.
func Serialize(guard *core.Guard, opts ...Option) echo.MiddlewareFunc {
	c := Config{Guard: guard}
	for _, opt := range opts {
		opt(&c)
	}
	m, err := c.ToMiddleware()
	if err != nil {
		panic(err)
	}
	return m
}

// Option sets a field of Config for the short form.
type Option func(*Config)

// Render sets Config.Render.
func Render(f func(c echo.Context, refusal *core.Refusal) error) Option {
	return func(c *Config) { c.Render = f }
}

// Config is the middleware in full, in the form of echo's own.
type Config struct {
	// Guard is the rule. Required.
	Guard *core.Guard

	// Skipper says which requests go through unlocked; a middleware.Skipper
	// fits. Default: none.
	Skipper func(c echo.Context) bool

	// Render replaces the rendering of refusals, all of them:
	// core.ReasonCanceled too, where nobody is left to read. What it returns is
	// what the middleware returns: an error for echo's error handler, or nil
	// when it has written the answer itself. Default: Problem.
	Render func(c echo.Context, refusal *core.Refusal) error
}

// ToMiddleware returns the middleware, or core.ErrConfig if there is no Guard.
//
// While the handler runs, c.Request carries the lease's context and the
// response's Writer is one that sees whether an answer was begun; then both are
// the original ones again. An error that the handler returns is returned after
// the release, and rendered by echo outside the lock, as errors of all handlers
// are. If the lease was lost and nothing is written, the refusal is returned in
// its place, with the handler's error joined to Refusal.Err: a handler whose own
// answer is to count then writes it, or calls c.Error.
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
				return err
			}
			tracked.Restore()
			return c.refuse(ec, refusal, err)
		}
	}, nil
}

// track runs the handler under ctx, with a writer of its own, which it returns:
// it knows whether an answer was begun. Response.Committed is not enough for that:
// a flush or a hijacked connection does not set it.
func track(ctx context.Context, ec echo.Context, next echo.HandlerFunc) (*httpx.Writer, error) {
	res := ec.Response()
	tracked := &httpx.Writer{ResponseWriter: res.Writer, Ctx: ctx}
	res.Writer = tracked.ForHandler()
	defer func() {
		res.Writer = tracked.ResponseWriter
		if tracked.Refused {
			// Of what echo takes for sent nothing has left.
			res.Status, res.Size, res.Committed = http.StatusOK, 0, false
		}
	}()
	return tracked, serve(ctx, ec, next)
}

// serve runs the handler under ctx.
func serve(ctx context.Context, ec echo.Context, next echo.HandlerFunc) error {
	r := ec.Request()
	ec.SetRequest(r.WithContext(ctx))
	defer func() {
		// Not of the copy made above: middleware in between may have replaced
		// it, and the last one has the form.
		httpx.HandBack(r, ec.Request())
		ec.SetRequest(r)
	}()
	return next(ec)
}

// refuse answers a refusal instead of the handler, which may have returned err.
func (c Config) refuse(ec echo.Context, refusal *core.Refusal, err error) error {
	if err != nil {
		refusal.Err = errors.Join(refusal.Err, err)
	}
	return c.Render(ec, refusal)
}

// request is echo's request for the guard.
type request struct {
	httpx.Request
	c     echo.Context
	known *sync.Map // of registered
}

// Route returns the route's pattern.
func (q request) Route() (string, bool) { return q.c.Path(), echox.Routed(q.c, q.known) }

// Param returns a path parameter. echo matches the raw path where there is one,
// and then its values are still escaped.
func (q request) Param(name string) (string, error) {
	i := slices.Index(q.c.ParamNames(), name)
	switch {
	case i < 0 && q.c.Path() == "":
		return "", fmt.Errorf("%w: echo has not matched the request yet: Use, not Pre", core.ErrNoParam)
	case i < 0:
		return "", core.ErrNoParam
	}
	return httpx.Unescape(q.URL, q.c.ParamValues()[i])
}

// Value returns what c.Set has put there, else what the request's context holds.
func (q request) Value(key any) any {
	if name, ok := key.(string); ok {
		if v := q.c.Get(name); v != nil {
			return v
		}
	}
	return q.Request.Value(key)
}

// Native returns the echo.Context.
func (q request) Native() any { return q.c }

// Problem is how refusals are rendered by default. It returns an
// *echo.HTTPError, so that the application's error handler has the last word:
// errors.As finds a *RefusalError in it, errors.Is the sentinels of core.
// Retry-After and Cache-Control are set on the response already. Left to echo's
// default error handler, or to any that gives the error's Message to c.JSON, it
// comes out as problem details (RFC 9457) of type urn:interlock:problem:<reason>
// with fixed text, under their own Content-Type.
//
// For a client that has gone the error has code 499 and the response is marked
// as committed, so that nothing is written. A function for Render can fall back
// on Problem.
func Problem(c echo.Context, refusal *core.Refusal) error {
	res := c.Response()
	status, _ := httpx.Problem(refusal, res.Header())
	if status == 0 {
		status = httpx.ClientClosedRequest
		res.Status, res.Committed = status, true
	}
	// An error handler that answers with a page must not inherit the type.
	res.Header().Del(echo.HeaderContentType)
	message := httpx.Message{Reason: refusal.Reason, Header: res.Header()}
	return &echo.HTTPError{Code: status, Message: message, Internal: &RefusalError{refusal}}
}

// RefusalError is a refusal as an error, for error handlers: the Internal of
// what Problem returns.
type RefusalError struct{ *core.Refusal }

// Error is for logs, such as those of echo's middleware: it has hashes in place of
// keys, and no addresses of servers (core.Refusal.LogError).
func (e *RefusalError) Error() string { return e.String() }

// Unwrap returns Refusal.Err, which may hold keys and addresses.
func (e *RefusalError) Unwrap() error { return e.Err }
