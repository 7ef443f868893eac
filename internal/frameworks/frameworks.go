// Package frameworks has all frameworks with their adapters, so that one table of cases
// runs over each of them: in the tests of this module, and in tests of nested modules,
// which have other dependencies. It is for tests.
package frameworks

import (
	"context"
	"net/http"
	"slices"
	"testing"

	"github.com/gin-gonic/gin"
	"github.com/labstack/echo/v4"
	echov5 "github.com/labstack/echo/v5"
	"google.golang.org/grpc"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/echolock"
	echolockv5 "github.com/interlock-go/interlock/echolock/v5"
	"github.com/interlock-go/interlock/ginlock"
	"github.com/interlock-go/interlock/grpclock"
	"github.com/interlock-go/interlock/httplock"
	"github.com/interlock-go/interlock/internal/adaptertest"
	"github.com/interlock-go/interlock/internal/adaptertest/callspb"
)

// Framework is a framework with its package of this module. What all frameworks have
// in common is tested with tables, over the list [All]. To add a framework, write its
// builder and put it into the list.
type Framework struct {
	Label      string
	Start      func(testing.TB, *adaptertest.Service) adaptertest.Client
	HTTP       bool // a framework on net/http
	Parts      bool // what the handler sends arrives part by part
	Idempotent bool // it has idempotent endpoints
	Untyped    bool // the adapter does not know which parameters a route has
}

// All are the frameworks.
var All = []Framework{
	{"net/http", startHTTP, true, true, true, false},
	{"gin", startGin, true, true, true, false},
	{"echo", startEcho, true, true, true, false},
	{"echo v5", startEchoV5, true, true, true, false},
	{"gRPC", startUnary, false, false, true, false},
	{"gRPC stream", startStream, false, true, false, false},
}

// Protocols are a framework of each protocol, for what differs by protocol only.
var Protocols = []Framework{All[0], All[4]}

// Locks are the layers of rules, the outermost first.
func Locks(rules ...*core.Guard) (layers []adaptertest.Layer) {
	for _, rule := range rules {
		layers = append(layers, adaptertest.Layer{Lock: rule})
	}
	return layers
}

func startHTTP(t testing.TB, s *adaptertest.Service) adaptertest.Client {
	h := http.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if s.HandleHTTP(w, r, r.PathValue) != nil {
			http.Error(w, "refused by the handler", http.StatusConflict)
		}
	}))
	for _, layer := range slices.Backward(s.Layers) {
		if layer.Idempotent != nil {
			h = httplock.Idempotent(layer.Idempotent)(h)
		} else {
			h = httplock.Serialize(layer.Lock)(h)
		}
	}
	mux := http.NewServeMux()
	mux.HandleFunc(s.Pattern("{", "}"), func(w http.ResponseWriter, r *http.Request) {
		s.Front(r.Context(), func(ctx context.Context) *http.Request {
			r = adaptertest.InContext(ctx, r)
			h.ServeHTTP(w, r)
			return r
		})
	})
	return s.ServeHTTP(t, mux)
}

// gin would print its routes.
func init() { gin.SetMode(gin.ReleaseMode) }

func startGin(t testing.TB, s *adaptertest.Service) adaptertest.Client {
	e := gin.New()
	// Or a slash in a value, escaped as it may be, ends it. With this gin decodes
	// the values of such paths as it decodes forms: a plus beside an escaped slash
	// is a blank, to its handlers and so to their locks. No case has both.
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
			chain = append(chain, ginlock.Serialize(layer.Lock))
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
			chain = append(chain, echolock.Serialize(layer.Lock))
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
			chain = append(chain, echolockv5.Serialize(layer.Lock))
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

func startUnary(t testing.TB, s *adaptertest.Service) adaptertest.Client {
	const method = callspb.Calls_Call_FullMethodName
	chain := []grpc.UnaryServerInterceptor{func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, next grpc.UnaryHandler) (reply any, err error) {
		s.Front(ctx, func(ctx context.Context) *http.Request {
			reply, err = next(ctx, req)
			return nil
		})
		return reply, err
	}}
	for _, layer := range s.Layers {
		if layer.Idempotent != nil {
			chain = append(chain, grpclock.Idempotent(grpclock.Methods{method: layer.Idempotent}))
		} else {
			chain = append(chain, grpclock.UnaryServerInterceptor(grpclock.Rules{method: layer.Lock}))
		}
	}
	return s.ServeGRPC(t, false, chain, nil)
}

func startStream(t testing.TB, s *adaptertest.Service) adaptertest.Client {
	chain := []grpc.StreamServerInterceptor{func(srv any, ss grpc.ServerStream, _ *grpc.StreamServerInfo, next grpc.StreamHandler) (err error) {
		s.Front(ss.Context(), func(ctx context.Context) *http.Request {
			err = next(srv, serverStream{ss, ctx})
			return nil
		})
		return err
	}}
	for _, layer := range s.Layers {
		rules := grpclock.Rules{callspb.Calls_Watch_FullMethodName: layer.Lock}
		chain = append(chain, grpclock.StreamServerInterceptor(rules))
	}
	return s.ServeGRPC(t, true, nil, chain)
}

// serverStream is a stream with another context.
type serverStream struct {
	grpc.ServerStream
	ctx context.Context
}

func (s serverStream) Context() context.Context { return s.ctx }
