package echolock

import (
	"fmt"

	"github.com/labstack/echo/v5"

	"github.com/interlock-go/interlock/core/adapter"
	"github.com/interlock-go/interlock/internal/echox/v5"
	"github.com/interlock-go/interlock/internal/httpx"
)

// request is the [core.Request] of echo.
type request struct {
	httpx.Request
	c      *echo.Context
	routes *echox.Routes
}

// Route returns the route's pattern, and whether there is a route.
func (q request) Route() (string, bool) { return q.c.Path(), echox.Routed(q.c) }

// Param returns a path parameter, decoded.
func (q request) Param(name string) (string, error) {
	for _, p := range q.c.PathValues() {
		switch {
		case p.Name != name:
		case q.URL.RawPath == "" || q.routes.Decode(q.c):
			return p.Value, nil
		default:
			return httpx.Unescape(q.URL, p.Value)
		}
	}
	if q.c.Path() == "" {
		return "", fmt.Errorf("%w: echo has not matched the request yet: Use, not Pre", adapter.ErrNoParam)
	}
	return "", adapter.ErrNoParam
}

// Value returns the value that c.Set stored, else the value of the request's context.
func (q request) Value(key any) any { return httpx.Value(q.c, q.Request.Request, key) }

// Native returns the *echo.Context. It must not be kept beyond the request.
func (q request) Native() any { return q.c }
