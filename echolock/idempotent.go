package echolock

import (
	"context"
	"sync"

	"github.com/labstack/echo/v4"

	"github.com/interlock-go/interlock/core/idempotency"
	"github.com/interlock-go/interlock/internal/capture"
	"github.com/interlock-go/interlock/internal/httpx"
)

// Idempotent returns a middleware that carries a request out once for each
// Idempotency-Key, and answers those that are sent again with the response of the
// first: see the package comment. What differs from endpoint to endpoint the
// engine is told:
//
//	echolock.Idempotent(engine.With(idempotency.Under(debit)))
//
// An error that the handler returns is rendered at once, by c.Error, so that what
// the client gets is what is stored. Then it is returned all the same, for
// middleware in front that depends on it: the response is committed, and echo
// renders it no second time.
//
// It goes behind authentication. Skipper and Render of Config may be set by
// options. It panics if engine is nil.
func Idempotent(engine *idempotency.Engine, opts ...Option) echo.MiddlewareFunc {
	if engine == nil {
		panic("echolock: Idempotent with a nil engine; idempotency.New makes one")
	}
	c := Config{Render: Problem}
	for _, opt := range opts {
		opt(&c)
	}
	known := new(sync.Map)
	return func(next echo.HandlerFunc) echo.HandlerFunc {
		return func(ec echo.Context) (err error) {
			if c.Skipper != nil && c.Skipper(ec) {
				return next(ec)
			}
			r, res := ec.Request(), ec.Response()
			call := capture.Call{Request: request{httpx.Request{Request: r}, ec, known}, HTTP: r}
			var captured *capture.Writer
			var tracked *httpx.Writer
			verdict := engine.Do(r.Context(), call, idempotency.Handler{
				Run: func(ctx context.Context, attempt *idempotency.Attempt) (idempotency.Response, bool) {
					captured = capture.New(res, attempt)
					// A response of its own: the one in front is not committed
					// until something is sent, and after a panic nothing was.
					own := echo.NewResponse(captured, ec.Echo())
					own.Status = res.Status
					ec.SetResponse(own)
					defer ec.SetResponse(res)
					answered := false
					err = serve(ctx, ec, func(ec echo.Context) error {
						err := next(ec)
						if answered = captured.Answered(); err != nil {
							ec.Error(err)
							captured.Fail(0) // should nothing have been rendered
						}
						return err
					})
					answer, _ := captured.Response(own.Status)
					return answer, answered
				},
				Pass: func(ctx context.Context) bool {
					tracked, err = track(ctx, ec, next)
					return tracked.Answered
				},
			})
			switch {
			case verdict.Refusal != nil:
				tracked.Restore()
				return c.refuse(ec, verdict.Refusal, err)
			case verdict.Replay != nil:
				capture.Replay(res, verdict.Replay)
				return nil
			case captured != nil && !captured.Failed():
				captured.Send()
			}
			return err
		}
	}
}
