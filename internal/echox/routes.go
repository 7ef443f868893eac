// Package echox finds out facts for package echolock that echo does not report directly.
package echox

import (
	"cmp"
	"sync"

	"github.com/labstack/echo/v4"
)

// Routed reports whether the router has matched a route: in Use and on groups a
// middleware also runs before echo's 404 and 405. In doubt it has, since a
// request may be refused by mistake, but not let through unlocked.
//
// known are the patterns found to be routes, as many as the application has. Paths without a
// route are not remembered, or a route added later would stay unlocked.
func Routed(c echo.Context, known *sync.Map) bool {
	e, r := c.Echo(), c.Request()
	router := cmp.Or(e.Routers()[r.Host], e.Router())
	if c.Path() == "" {
		// A 404, or not routed yet, as in Pre: ask the router.
		probe := e.AcquireContext()
		defer e.ReleaseContext(probe)
		probe.Reset(r, nil)
		if router.Find(r.Method, echo.GetPath(r), probe); probe.Path() == "" {
			return false
		}
		c = probe
	}
	if c.Get(echo.ContextKeyHeaderAllow) != nil { // 405
		return false
	}
	if _, ok := known.Load(c.Path()); ok {
		return true
	}
	notFound := false // Group.Use registers its 404 as if it were a route
	for _, route := range router.Routes() {
		if route.Path == c.Path() {
			if notFound = route.Method == echo.RouteNotFound; !notFound {
				break
			}
		}
	}
	if !notFound {
		known.Store(c.Path(), nil)
	}
	return !notFound
}
