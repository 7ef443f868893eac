package ginlock

import (
	"bufio"
	"context"
	"net"
	"net/http"

	"github.com/gin-gonic/gin"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/adapter"
	"github.com/interlock-go/interlock/internal/httpx"
)

// tracker is a [gin.ResponseWriter] that asks the guard before an answer begins
// ([adapter.BeginAnswer]). If the guard refuses, it drops the answer.
type tracker struct {
	gin.ResponseWriter
	ctx      context.Context
	refused  bool
	original httpx.Original
}

// Header returns the header of the wrapped writer.
func (w *tracker) Header() http.Header { return w.original.Note(w.ResponseWriter.Header()) }

// begin reports whether an answer may begin or has begun.
func (w *tracker) begin() bool {
	if !w.Written() && !w.refused {
		w.refused = !adapter.BeginAnswer(w.ctx, w.Status() < http.StatusBadRequest)
		httpx.MarkStuck(w.ctx, w.ResponseWriter.Header(), w.Status())
	}
	return !w.refused
}

// restore undoes the changes that handlers made to the header, before a refusal is
// written in their place. The tracker is nil if the handlers did not run.
func (w *tracker) restore() {
	if w != nil {
		w.original.Restore(w.ResponseWriter.Header())
	}
}

// Unwrap returns the wrapped writer, for [http.ResponseController].
func (w *tracker) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// WriteHeaderNow sends the header.
func (w *tracker) WriteHeaderNow() {
	if w.begin() {
		w.ResponseWriter.WriteHeaderNow()
	}
}

// Write writes a part of the body. It returns [core.ErrLost] if the answer is
// dropped.
func (w *tracker) Write(b []byte) (int, error) {
	if !w.begin() {
		return 0, core.ErrLost
	}
	return w.ResponseWriter.Write(b)
}

// WriteString is Write without a copy for io.WriteString.
func (w *tracker) WriteString(s string) (int, error) {
	if !w.begin() {
		return 0, core.ErrLost
	}
	return w.ResponseWriter.WriteString(s)
}

// Flush sends the header and the buffered part of the body.
func (w *tracker) Flush() {
	if w.begin() {
		w.ResponseWriter.Flush()
	}
}

// Hijack takes over the connection. It returns [core.ErrLost] if the answer is
// dropped.
func (w *tracker) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	if !w.begin() {
		return nil, nil, core.ErrLost
	}
	return w.ResponseWriter.Hijack()
}
