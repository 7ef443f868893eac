package ginlock

import (
	"bufio"
	"context"
	"net"
	"net/http"

	"github.com/gin-gonic/gin"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/internal/httpx"
)

// tracker is a gin.ResponseWriter that asks the guard before an answer begins. One
// that is held back is dropped.
type tracker struct {
	gin.ResponseWriter
	ctx      context.Context
	refused  bool
	original httpx.Original
}

// Header returns the header of the writer below.
func (w *tracker) Header() http.Header { return w.original.Note(w.ResponseWriter.Header()) }

// begin reports whether an answer may begin, or has.
func (w *tracker) begin() bool {
	if !w.Written() && !w.refused {
		w.refused = !core.BeginAnswer(w.ctx, w.Status() < http.StatusBadRequest)
	}
	return !w.refused
}

// restore undoes what handlers did to the header, for a refusal that is answered
// in their place. The tracker may be nil: they did not run.
func (w *tracker) restore() {
	if w != nil {
		w.original.Restore(w.ResponseWriter.Header())
	}
}

// Unwrap is for http.ResponseController.
func (w *tracker) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// WriteHeaderNow sends the header.
func (w *tracker) WriteHeaderNow() {
	if w.begin() {
		w.ResponseWriter.WriteHeaderNow()
	}
}

// Write writes a part of the body.
func (w *tracker) Write(b []byte) (int, error) {
	if !w.begin() {
		return 0, core.ErrLost
	}
	return w.ResponseWriter.Write(b)
}

// WriteString spares io.WriteString a copy.
func (w *tracker) WriteString(s string) (int, error) {
	if !w.begin() {
		return 0, core.ErrLost
	}
	return w.ResponseWriter.WriteString(s)
}

// Flush sends what is buffered, and the header before it.
func (w *tracker) Flush() {
	if w.begin() {
		w.ResponseWriter.Flush()
	}
}

// Hijack takes the connection over.
func (w *tracker) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	if !w.begin() {
		return nil, nil, core.ErrLost
	}
	return w.ResponseWriter.Hijack()
}
