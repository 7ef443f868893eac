package ginlock

import (
	"context"
	"net/http"

	"github.com/gin-gonic/gin"

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
//	ginlock.Idempotent(engine.With(idempotency.Under(debit)))
//
// Handlers that write nothing and leave errors in c.Errors have failed. Their status is
// 500, unless they chose another status of 500 or above. The middleware only notes that
// status, so that a middleware in front can still write its own body. A handler that
// begins a response of success and then adds an error to c.Errors has broken the response
// off: the request counts as carried out, and all its clients get 409.
//
// Put a middleware that makes responses from errors after Idempotent if those responses are
// to be stored.
//
// Put Idempotent after authentication. Put it inside a time limit that answers
// while the handler still runs, never around one: [http.TimeoutHandler] around the
// gin engine is right, a timeout middleware after Idempotent (gin-contrib/timeout)
// is wrong. There, its 503 or 408 would end the claim, and a retry would run in
// parallel with the handler. [idempotency.MaxHold] bounds the handler itself.
//
// The middleware is safe for concurrent use. Idempotent panics if engine is nil.
func Idempotent(engine *idempotency.Engine, opts ...Option) gin.HandlerFunc {
	if engine == nil {
		panic("ginlock: Idempotent with a nil engine; idempotency.New makes one")
	}
	o := newOptions(opts)
	return func(c *gin.Context) {
		r, w := c.Request, c.Writer
		written := w.Written()
		call := capture.NewCall(engine, request{httpx.Request{Request: r}, c}, r, w.Header())
		var captured *writer
		var tracked *tracker
		verdict := engine.Do(r.Context(), call, endpoint.Handler{
			Run: func(ctx context.Context, attempt endpoint.Attempt) (endpoint.Response, bool) {
				captured = &writer{Writer: capture.New(ctx, w, attempt), c: c, noted: w.Status()}
				c.Writer = captured
				defer func() { c.Writer = w }()
				errs := len(c.Errors)
				captured.Run(func() { next(ctx, c) })
				switch answered := captured.Answered(); {
				case answered && len(c.Errors) > captured.errs:
					captured.BreakOff(c.Errors.Last())
				case !answered && len(c.Errors) > errs:
					captured.Fail(captured.noted)
				}
				if w.Written() && !written {
					captured.Evade(w.Status()) // [gin.Engine.HandleContext] resets the writer
				}
				if !captured.Answered() && !captured.set {
					attempt.Unwritten()
				}
				return captured.Response(captured.noted)
			},
			Pass: func(ctx context.Context) bool {
				tracked = track(ctx, c)
				return w.Written()
			},
		})
		switch {
		case verdict.Refusal != nil:
			c.Writer = w
			tracked.restore()
			o.refuse(c, verdict.Refusal)
		case verdict.Replay != nil:
			c.Abort()
			capture.Replay(w, verdict.Replay)
			w.WriteHeaderNow()
		case captured != nil:
			captured.Send(verdict.Inside)
			if !captured.Failed() {
				w.WriteHeaderNow()
			}
		}
	}
}

// writer makes a [gin.ResponseWriter] from a [capture.Writer]. As in gin,
// WriteHeader only notes a status; the body or WriteHeaderNow writes it.
type writer struct {
	*capture.Writer
	c     *gin.Context
	noted int
	set   bool // the handler has noted it
	errs  int  // how many errors there were when the header was written
}

func (w *writer) WriteHeader(status int) {
	switch {
	case status <= 0:
	case w.Answered():
		w.Writer.WriteHeader(status) // too late, and it may say that the handler has failed
	default:
		w.noted, w.set = status, true
	}
}

func (w *writer) WriteHeaderNow() {
	if !w.Answered() {
		w.errs = len(w.c.Errors)
		w.Writer.WriteHeader(w.noted)
	}
}

func (w *writer) Write(b []byte) (int, error) {
	w.WriteHeaderNow()
	return w.Writer.Write(b)
}

func (w *writer) WriteString(s string) (int, error) {
	w.WriteHeaderNow()
	return w.Writer.WriteString(s)
}

func (w *writer) FlushError() error {
	w.WriteHeaderNow()
	return w.Writer.FlushError()
}

func (w *writer) Flush() { _ = w.FlushError() }

func (w *writer) Status() int { return w.noted }

func (w *writer) Written() bool { return w.Answered() }

func (w *writer) Size() int {
	if !w.Answered() {
		return -1
	}
	return int(w.Writer.Size())
}

// CloseNotify never reports anything: the handler continues after its client left.
func (w *writer) CloseNotify() <-chan bool { return make(chan bool) }

func (w *writer) Pusher() http.Pusher { return nil }
