package echolock

import (
	"context"
	"sync"

	"github.com/labstack/echo/v4"

	"github.com/interlock-go/interlock/core/idempotency"
	"github.com/interlock-go/interlock/core/idempotency/endpoint"
	"github.com/interlock-go/interlock/internal/capture"
	"github.com/interlock-go/interlock/internal/httpx"
)

// Idempotent returns a middleware that runs the handler once for each
// Idempotency-Key. A client that sends the request again gets the stored response
// of the first one (see the package comment). Options that differ between endpoints
// go to [idempotency.Engine.With]:
//
//	echolock.Idempotent(engine.With(idempotency.Under(debit)))
//
// If the handler returns an error, the middleware renders it at once by c.Error, so
// that the client gets the response that is stored. Then it returns the error as
// well, for middleware in front that depends on it. The response is committed by
// then, so echo does not render the error a second time. A handler that begins a response of
// success and then returns an error has broken the response off: the request counts as
// carried out, and all its clients get 409.
//
// Put echo's middleware.Recover in front of Idempotent. After Idempotent, it needs
// RecoverConfig.DisableErrorHandler: it otherwise keeps from Idempotent that the handler
// panicked, and half a response is stored.
//
// Put Idempotent after authentication. Put it inside [http.TimeoutHandler] or echo's
// middleware.Timeout, never around them: they answer 503 while the handler still
// runs. Around them, that 503 would end the claim, and a retry would run in parallel
// with the handler. middleware.ContextTimeout waits for the handler to return. Put it
// after Idempotent, since Idempotent keeps the deadline of the request from the
// handler. [idempotency.MaxHold] bounds the handler itself.
//
// Options may set Skipper and Render of [Config]. The middleware is safe for concurrent use. Idempotent panics if engine
// is nil.
func Idempotent(engine *idempotency.Engine, opts ...Option) echo.MiddlewareFunc {
	if engine == nil {
		panic("echolock: Idempotent with a nil engine; idempotency.New makes one")
	}
	var c Config
	for _, opt := range opts {
		opt(&c)
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
			r, res := ec.Request(), ec.Response()
			committed := res.Committed
			call := capture.NewCall(engine, request{httpx.Request{Request: r}, ec, known}, r, res.Header())
			var captured *capture.Writer
			var tracked *httpx.Writer
			verdict := engine.Do(r.Context(), call, endpoint.Handler{
				Run: func(ctx context.Context, attempt endpoint.Attempt) (endpoint.Response, bool) {
					captured = capture.New(ctx, res, attempt)
					// The handler gets its own response. The outer one is not committed until
					// something is sent; after a panic nothing was.
					own := echo.NewResponse(captured, ec.Echo())
					own.Status = res.Status
					ec.SetResponse(own)
					defer ec.SetResponse(res)
					answered := false
					captured.Run(func() {
						err = httpx.Serve(ctx, ec, func(ec echo.Context) error {
							err := next(ec)
							if answered = captured.Answered(); err != nil {
								captured.BreakOff(err)
								ec.Error(err)
								captured.Fail(0) // in case the error handler rendered nothing
							}
							return err
						})
					})
					if res.Committed && !committed {
						captured.Evade(res.Status)
					}
					if err == nil && !captured.Answered() {
						attempt.Unwritten()
					}
					answer, whole := captured.Response(own.Status)
					return answer, answered && whole
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
				captured.Send(verdict.Inside)
			}
			return err
		}
	}
}
