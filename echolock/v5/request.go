package echolock

import (
	"fmt"
	"net/http"
	"net/url"
	"sync"

	"github.com/labstack/echo/v5"

	"github.com/interlock-go/interlock/core/adapter"
	"github.com/interlock-go/interlock/internal/httpx"
)

// request is the [core.Request] of echo.
type request struct {
	httpx.Request
	c      *echo.Context
	routes *routes
}

// Route returns the route's pattern, and whether there is a route: in Use and on groups a
// middleware also runs before echo's 404 and 405.
func (q request) Route() (string, bool) {
	c := q.c
	info := c.RouteInfo()
	if info.Name == "" && info.Method == "" {
		// Not routed yet, as in Pre: see what will come of it.
		probe := c.Echo().AcquireContext()
		defer c.Echo().ReleaseContext(probe)
		r := *q.Request.Request // the router writes to it
		probe.Reset(&r, nil)
		c.Echo().Router().Route(probe)
		info = probe.RouteInfo()
	}
	switch {
	case info.Name == echo.NotFoundRouteName, info.Name == echo.MethodNotAllowedRouteName, info.Method == echo.RouteNotFound:
		return c.Path(), false
	}
	return c.Path(), true
}

// Param returns a path parameter, decoded.
func (q request) Param(name string) (string, error) {
	for _, p := range q.c.PathValues() {
		switch {
		case p.Name != name:
		case q.URL.RawPath == "" || q.routes.decode(q.c):
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
func (q request) Value(key any) any {
	if name, ok := key.(string); ok {
		if v := q.c.Get(name); v != nil {
			return v
		}
	}
	return q.Request.Value(key)
}

// Native returns the *echo.Context. It must not be kept beyond the request.
func (q request) Native() any { return q.c }

// routes notes of each route whether its router decodes parameters (map[route]bool). An
// application has as many as it has routes.
type routes struct{ sync.Map }

type route struct {
	router       echo.Router
	method, path string
}

// decode reports whether the router decodes the parameters of a request whose path is
// escaped. The settings of a router cannot be read, so the router is given a path with an
// escaped letter. A router that does not find the route by that path is taken for the
// default.
func (k *routes) decode(c *echo.Context) bool {
	info := c.RouteInfo()
	router := c.Echo().Router()
	id := route{router, c.Request().Method, info.Path}
	if known, ok := k.Load(id); ok {
		return known.(bool)
	}
	values := func(v string) (all []any) {
		for range info.Parameters {
			all = append(all, v)
		}
		return all
	}
	const escaped, plain = "interlock-%41-interlock", "interlock-A-interlock"
	probe := c.Echo().AcquireContext()
	defer c.Echo().ReleaseContext(probe)
	r := &http.Request{Method: id.method, Host: c.Request().Host, Header: http.Header{}, URL: &url.URL{
		Path: info.Reverse(values(plain)...), RawPath: info.Reverse(values(escaped)...),
	}}
	probe.Reset(r, nil)
	router.Route(probe)
	decodes := false
	for _, p := range probe.PathValues() {
		decodes = decodes || p.Value == plain
	}
	k.Store(id, decodes)
	return decodes
}
