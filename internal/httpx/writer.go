package httpx

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"net/http"

	"github.com/interlock-go/interlock/core"
)

// Writer notes whether a response was begun, and asks the guard before it is. It
// keeps what the writer below can do: http.ResponseController finds that by
// Unwrap, handlers that assert http.Flusher, http.Hijacker, io.ReaderFrom or
// io.StringWriter find these. Like the writer below it is not safe for concurrent
// use.
type Writer struct {
	http.ResponseWriter
	// Ctx is the context that the guard gave to the handler; nil asks nobody.
	Ctx context.Context
	// Answered says that the header is on its way, or that the connection was
	// taken over: the answer can no longer be replaced.
	Answered bool
	// Refused says that the guard held the answer back (core.BeginAnswer): what
	// the handler writes is dropped.
	Refused bool

	original Original
}

// Header returns the header of the writer below.
func (w *Writer) Header() http.Header { return w.original.Note(w.ResponseWriter.Header()) }

// Restore undoes what the handler did to the header, for a refusal that is
// answered in its place. The Writer may be nil: the handler did not run.
func (w *Writer) Restore() {
	if w != nil {
		w.original.Restore(w.ResponseWriter.Header())
	}
}

// begin is called before anything of an answer leaves, with its status. It
// reports whether it may.
func (w *Writer) begin(status int) bool {
	if !w.Answered && !w.Refused {
		w.Refused = w.Ctx != nil && !core.BeginAnswer(w.Ctx, status < http.StatusBadRequest)
		w.Answered = !w.Refused
	}
	return w.Answered
}

// Unwrap is for http.ResponseController.
func (w *Writer) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// WriteHeader sends the header. Informational ones (1xx) are not the answer yet,
// except the one that changes the protocol.
func (w *Writer) WriteHeader(status int) {
	final := status >= 200 || status == http.StatusSwitchingProtocols
	if !w.Refused && (!final || w.begin(status)) {
		w.ResponseWriter.WriteHeader(status)
	}
}

// Write writes a part of the body; core.ErrLost says that the answer was held
// back.
func (w *Writer) Write(b []byte) (int, error) {
	if !w.begin(http.StatusOK) {
		return 0, core.ErrLost
	}
	return w.ResponseWriter.Write(b)
}

// WriteString spares io.WriteString a copy.
func (w *Writer) WriteString(s string) (int, error) {
	if !w.begin(http.StatusOK) {
		return 0, core.ErrLost
	}
	return io.WriteString(w.ResponseWriter, s)
}

// ReadFrom lets io.Copy reach the writer below, which may use sendfile. A source
// that fails at once has begun nothing.
func (w *Writer) ReadFrom(r io.Reader) (int64, error) {
	before := w.Answered
	if !w.begin(http.StatusOK) {
		return 0, core.ErrLost
	}
	n, err := io.Copy(w.ResponseWriter, r)
	w.Answered = before || n > 0
	return n, err
}

// FlushError sends what is buffered, and the header before it.
func (w *Writer) FlushError() error {
	before := w.Answered
	if !w.begin(http.StatusOK) {
		return core.ErrLost
	}
	err := http.NewResponseController(w.ResponseWriter).Flush()
	w.Answered = before || !errors.Is(err, http.ErrNotSupported)
	return err
}

// Flush is FlushError for those who assert http.Flusher.
func (w *Writer) Flush() { _ = w.FlushError() }

// Hijack takes the connection over.
func (w *Writer) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	before := w.Answered
	if !w.begin(http.StatusSwitchingProtocols) {
		return nil, nil, core.ErrLost
	}
	conn, rw, err := http.NewResponseController(w.ResponseWriter).Hijack()
	w.Answered = before || err == nil
	return conn, rw, err
}
