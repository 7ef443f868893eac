package httplock

import (
	"context"
	"net/http"

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
//	httplock.Idempotent(engine.With(idempotency.Under(debit)))
//
// Put the middleware around a handler, inside the router and after authentication. Put
// it inside [http.TimeoutHandler], never around it: TimeoutHandler answers 503 while
// the handler still runs. Around it, that 503 would end the claim, and a retry would
// run in parallel with the handler. [idempotency.MaxHold] bounds the handler itself.
// The middleware is safe for concurrent use.
//
// Idempotent panics if engine is nil.
func Idempotent(engine *idempotency.Engine, opts ...Option) func(http.Handler) http.Handler {
	if engine == nil {
		panic("httplock: Idempotent with a nil engine; idempotency.New makes one")
	}
	o := newOptions(opts)
	return func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			// The methods of the call: for the guard in httpx.Request and request (httplock.go),
			// for the engine in capture.Call.
			call := capture.NewCall(engine, request{httpx.Request{Request: r}, o}, r, w.Header())
			var captured *capture.Writer
			var tracked *httpx.Writer
			verdict := engine.Do(r.Context(), call, endpoint.Handler{
				Run: func(ctx context.Context, attempt endpoint.Attempt) (endpoint.Response, bool) {
					captured = capture.New(ctx, w, attempt)
					captured.Run(func() { serve(ctx, next, captured, r) })
					if !captured.Answered() {
						attempt.Unwritten()
					}
					return captured.Response(http.StatusOK)
				},
				Pass: func(ctx context.Context) bool {
					tracked = &httpx.Writer{ResponseWriter: w, Ctx: ctx}
					serve(ctx, next, tracked.ForHandler(), r)
					return tracked.Answered
				},
			})
			switch {
			case verdict.Refusal != nil:
				tracked.Restore()
				o.render(w, r, verdict.Refusal)
			case verdict.Replay != nil:
				capture.Replay(w, verdict.Replay)
			case captured != nil:
				captured.Send(verdict.Inside)
			}
		})
	}
}
