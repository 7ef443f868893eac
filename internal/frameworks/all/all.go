// Package all has all frameworks of this module with their adapters. It is for tests.
package all

import (
	"context"
	"net/http"
	"testing"

	"github.com/gin-gonic/gin"
	"github.com/labstack/echo/v4"
	echov5 "github.com/labstack/echo/v5"

	"github.com/interlock-go/interlock/core/adapter/adaptertest"
	"github.com/interlock-go/interlock/echolock"
	echolockv5 "github.com/interlock-go/interlock/echolock/v5"
	"github.com/interlock-go/interlock/ginlock"
	"github.com/interlock-go/interlock/internal/frameworks"
)

// Frameworks are the frameworks.
var Frameworks = []adaptertest.Framework{
	frameworks.HTTP, onHTTP("gin", "*gin.Context", startGin), onHTTP("echo", "*echo.context", startEcho),
	onHTTP("echo v5", "*echo.Context", startEchoV5),
	frameworks.GRPC, frameworks.GRPCStream,
}

// onHTTP is a framework on net/http.
func onHTTP(label, native string, start func(testing.TB, *adaptertest.Service) adaptertest.Client) adaptertest.Framework {
	return adaptertest.Framework{
		Label: label, Native: native, Start: start,
		HTTP: true, Parts: true, Idempotent: true, Colons: true, Sets: true,
	}
}

// gin would print its routes.
func init() { gin.SetMode(gin.ReleaseMode) }

func startGin(t testing.TB, s *adaptertest.Service) adaptertest.Client {
	e := gin.New()
	// Or a slash in a value, escaped as it may be, ends it. With this gin decodes
	// the values of such paths as it decodes forms: a plus in a path with an
	// escaped slash is a blank, to its handlers and so to their locks. No case has
	// both.
	e.UseRawPath = true
	chain := gin.HandlersChain{func(c *gin.Context) {
		if s.User != "" {
			c.Set("user", s.User)
		}
		s.Front(c.Request.Context(), func(ctx context.Context) *http.Request {
			c.Request = adaptertest.InContext(ctx, c.Request)
			c.Next()
			return c.Request
		})
	}}
	for _, layer := range s.Layers {
		if layer.Idempotent != nil {
			chain = append(chain, ginlock.Idempotent(layer.Idempotent))
		} else {
			chain = append(chain, ginlock.Guard(layer.Lock))
		}
	}
	e.Any(s.Pattern(":", ""), append(chain, func(c *gin.Context) {
		if s.HandleHTTP(c.Writer, c.Request, c.Param) != nil {
			c.AbortWithStatus(http.StatusConflict)
		}
	})...)
	return s.ServeHTTP(t, e)
}

func startEcho(t testing.TB, s *adaptertest.Service) adaptertest.Client {
	e := echo.New()
	chain := []echo.MiddlewareFunc{func(next echo.HandlerFunc) echo.HandlerFunc {
		return func(c echo.Context) (err error) {
			if s.User != "" {
				c.Set("user", s.User)
			}
			s.Front(c.Request().Context(), func(ctx context.Context) *http.Request {
				c.SetRequest(adaptertest.InContext(ctx, c.Request()))
				err = next(c)
				return c.Request()
			})
			return err
		}
	}}
	for _, layer := range s.Layers {
		if layer.Idempotent != nil {
			chain = append(chain, echolock.Idempotent(layer.Idempotent))
		} else {
			chain = append(chain, echolock.Guard(layer.Lock))
		}
	}
	e.Any(s.Pattern(":", ""), func(c echo.Context) error {
		if s.HandleHTTP(c.Response(), c.Request(), c.Param) != nil {
			return echo.NewHTTPError(http.StatusConflict)
		}
		return nil
	}, chain...)
	return s.ServeHTTP(t, e)
}

func startEchoV5(t testing.TB, s *adaptertest.Service) adaptertest.Client {
	e := echov5.New()
	chain := []echov5.MiddlewareFunc{func(next echov5.HandlerFunc) echov5.HandlerFunc {
		return func(c *echov5.Context) (err error) {
			if s.User != "" {
				c.Set("user", s.User)
			}
			s.Front(c.Request().Context(), func(ctx context.Context) *http.Request {
				c.SetRequest(adaptertest.InContext(ctx, c.Request()))
				err = next(c)
				return c.Request()
			})
			return err
		}
	}}
	for _, layer := range s.Layers {
		if layer.Idempotent != nil {
			chain = append(chain, echolockv5.Idempotent(layer.Idempotent))
		} else {
			chain = append(chain, echolockv5.Guard(layer.Lock))
		}
	}
	e.Any(s.Pattern(":", ""), func(c *echov5.Context) error {
		if s.HandleHTTP(c.Response(), c.Request(), c.Param) != nil {
			return echov5.NewHTTPError(http.StatusConflict, "")
		}
		return nil
	}, chain...)
	return s.ServeHTTP(t, e)
}
