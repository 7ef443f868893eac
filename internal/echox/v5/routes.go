// Package echox finds out facts for package echolock/v5 that echo does not report directly.
package echox

import (
	"net/http"
	"net/url"
	"sync"

	"github.com/labstack/echo/v5"
)

// Routed reports whether the router has matched a route: in Use and on groups a middleware
// also runs before echo's 404 and 405.
func Routed(c *echo.Context) bool {
	info := c.RouteInfo()
	if info.Name == "" && info.Method == "" {
		// Not routed yet, as in Pre: ask the router.
		r := *c.Request() // the router writes to it
		probe := route(c, &r)
		defer c.Echo().ReleaseContext(probe)
		info = probe.RouteInfo()
	}
	return info.Name != echo.NotFoundRouteName && info.Name != echo.MethodNotAllowedRouteName && info.Method != echo.RouteNotFound
}

// Routes notes of each route whether its router decodes parameters (map[key]bool). An
// application has as many as it has routes.
type Routes struct{ known sync.Map }

type key struct {
	router       echo.Router
	method, path string
}

// Decode reports whether the router decodes the parameters of a request with an escaped
// path. The settings of a router cannot be read, so the router is given a path with an
// escaped letter. A router that does not find the route by that path is taken for the
// default.
func (k *Routes) Decode(c *echo.Context) bool {
	info := c.RouteInfo()
	id := key{c.Echo().Router(), c.Request().Method, info.Path}
	if known, ok := k.known.Load(id); ok {
		return known.(bool)
	}
	values := func(v string) (all []any) {
		for range info.Parameters {
			all = append(all, v)
		}
		return all
	}
	const escaped, plain = "interlock-%41-interlock", "interlock-A-interlock"
	probe := route(c, &http.Request{Method: id.method, Host: c.Request().Host, Header: http.Header{}, URL: &url.URL{
		Path: info.Reverse(values(plain)...), RawPath: info.Reverse(values(escaped)...),
	}})
	defer c.Echo().ReleaseContext(probe)
	decodes := false
	for _, p := range probe.PathValues() {
		decodes = decodes || p.Value == plain
	}
	k.known.Store(id, decodes)
	return decodes
}

// route returns the route that the router of a context finds for a request. The caller
// releases it.
func route(c *echo.Context, r *http.Request) *echo.Context {
	probe := c.Echo().AcquireContext()
	probe.Reset(r, nil)
	c.Echo().Router().Route(probe)
	return probe
}
