package main

import (
	"net/http"

	"github.com/gin-gonic/gin"
	"github.com/labstack/echo/v4"

	"github.com/interlock-go/interlock/echolock"
	"github.com/interlock-go/interlock/ginlock"
	"github.com/interlock-go/interlock/httplock"
)

// In each framework one call puts a route under its lock. An invalid request is refused
// before it waits for the lock, and the work runs under the lock. The lease is in the
// request's context.

// httpRoutes is the bank on net/http. Its mux has decoded the parameters.
func httpRoutes(s *service) http.Handler {
	mux := http.NewServeMux()
	once := httplock.Idempotent(s.payments)
	for _, route := range s.routes() {
		var work http.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			result, err := route.run(input{r, r.PathValue})
			s.answer(w, r, result, err)
		})
		switch {
		case route.once:
			work = once(work)
		case route.guard != nil:
			work = httplock.Guard(route.guard)(work)
		}
		mux.HandleFunc(route.method+" "+route.path, func(w http.ResponseWriter, r *http.Request) {
			admitted, err := route.admit(input{r, r.PathValue})
			if err != nil {
				s.refuse(w, r, err)
				return
			}
			work.ServeHTTP(w, admitted)
		})
	}
	return mux
}

// In its default mode gin prints to stdout, where this program prints the addresses
// and the table. The mode applies to the whole package, so no server sets it.
func init() { gin.SetMode(gin.ReleaseMode) }

// ginRoutes is the bank on gin. The lock is one more handler of a route, after the handler
// that admits and before the handler that works.
func ginRoutes(s *service) http.Handler {
	engine := gin.New()
	once := ginlock.Idempotent(s.payments)
	for _, route := range s.routes() {
		admit := func(c *gin.Context) {
			admitted, err := route.admit(input{c.Request, c.Param})
			if err != nil {
				c.Abort()
				s.refuse(c.Writer, c.Request, err)
				return
			}
			c.Request = admitted
		}
		work := func(c *gin.Context) {
			result, err := route.run(input{c.Request, c.Param})
			s.answer(c.Writer, c.Request, result, err)
		}
		chain := gin.HandlersChain{admit, work}
		switch {
		case route.once:
			chain = gin.HandlersChain{admit, once, work}
		case route.guard != nil:
			chain = gin.HandlersChain{admit, ginlock.Guard(route.guard), work}
		}
		engine.Handle(route.method, colons(route.path), chain...)
	}
	return engine
}

// echoRoutes is the bank on echo. The lock is a middleware of a route, after the middleware
// that admits, since the first in the list is the outermost. The lock's refusals are errors,
// which echo's own error handler renders.
func echoRoutes(s *service) http.Handler {
	e := echo.New()
	once := echolock.Idempotent(s.payments)
	for _, route := range s.routes() {
		chain := []echo.MiddlewareFunc{func(next echo.HandlerFunc) echo.HandlerFunc {
			return func(c echo.Context) error {
				admitted, err := route.admit(input{c.Request(), c.Param})
				if err != nil {
					s.refuse(c.Response(), c.Request(), err)
					return nil
				}
				c.SetRequest(admitted)
				return next(c)
			}
		}}
		switch {
		case route.once:
			chain = append(chain, once)
		case route.guard != nil:
			chain = append(chain, echolock.Guard(route.guard))
		}
		e.Add(route.method, colons(route.path), func(c echo.Context) error {
			result, err := route.run(input{c.Request(), c.Param})
			s.answer(c.Response(), c.Request(), result, err)
			return nil
		}, chain...)
	}
	return e
}
