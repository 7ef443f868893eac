package ginlock

import (
	"context"
	"net/http"

	"github.com/gin-gonic/gin"

	"github.com/interlock-go/interlock/core/idempotency"
	"github.com/interlock-go/interlock/internal/capture"
	"github.com/interlock-go/interlock/internal/httpx"
)

// Idempotent returns a middleware that carries a request out once for each
// Idempotency-Key, and answers those that are sent again with the response of the
// first: see the package comment. What differs from endpoint to endpoint the
// engine is told:
//
//	ginlock.Idempotent(engine.With(idempotency.Under(debit)))
//
// Handlers that write nothing and leave errors in c.Errors have failed, with 500
// unless they chose another such status. It is only noted, so that a middleware
// in front may still answer with a text of its own; one that makes answers of
// errors which are to be stored goes behind.
//
// It goes behind authentication. It panics if engine is nil.
func Idempotent(engine *idempotency.Engine, opts ...Option) gin.HandlerFunc {
	if engine == nil {
		panic("ginlock: Idempotent with a nil engine; idempotency.New makes one")
	}
	o := newOptions(opts)
	return func(c *gin.Context) {
		r, w := c.Request, c.Writer
		call := capture.Call{Request: request{httpx.Request{Request: r}, c}, HTTP: r}
		var captured *writer
		var tracked *tracker
		verdict := engine.Do(r.Context(), call, idempotency.Handler{
			Run: func(ctx context.Context, attempt *idempotency.Attempt) (idempotency.Response, bool) {
				captured = &writer{capture.New(w, attempt), w.Status()}
				c.Writer = captured
				defer func() { c.Writer = w }()
				errs := len(c.Errors)
				next(ctx, c)
				if len(c.Errors) > errs {
					captured.Fail(captured.noted)
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
			captured.Send()
			if !captured.Failed() {
				w.WriteHeaderNow()
			}
		}
	}
}

// writer is a capture.Writer as gin.ResponseWriter: WriteHeader only notes a
// status, which is written with the body or WriteHeaderNow.
type writer struct {
	*capture.Writer
	noted int
}

func (w *writer) WriteHeader(status int) {
	if status > 0 && !w.Answered() {
		w.noted = status
	}
}

func (w *writer) WriteHeaderNow() {
	w.Writer.WriteHeader(w.noted)
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

// CloseNotify tells of nobody: the handler runs on when its client has gone.
func (w *writer) CloseNotify() <-chan bool { return make(chan bool) }

func (w *writer) Pusher() http.Pusher { return nil }
