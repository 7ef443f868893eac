package httpx

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"net/http"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/adapter"
)

// Writer notes whether a response was begun, and asks the guard before it is. It
// keeps the abilities of the writer below: http.ResponseController finds them by
// Unwrap, handlers that assert io.ReaderFrom or io.StringWriter find these, and
// http.Flusher and http.Hijacker in the result of ForHandler. Like the writer
// below it is not safe for concurrent use.
type Writer struct {
	http.ResponseWriter
	// Ctx is the context that the guard gave to the handler; nil asks no store.
	Ctx context.Context
	// Answered says that the header is on its way, or that the connection was
	// taken over: the answer can no longer be replaced.
	Answered bool
	// Refused says that the guard held the answer back (adapter.BeginAnswer): the handler's
	// output is dropped.
	Refused bool

	original Original
}

// Header returns the header of the writer below.
func (w *Writer) Header() http.Header { return w.original.Note(w.ResponseWriter.Header()) }

// Restore undoes the handler's changes of the header, for a refusal that is answered in its
// place. The Writer may be nil: the handler did not run.
func (w *Writer) Restore() {
	if w != nil {
		w.original.Restore(w.ResponseWriter.Header())
	}
}

// begin is called before anything of an answer leaves, with its status. It
// reports whether it may.
func (w *Writer) begin(status int) bool {
	if !w.Answered && !w.Refused {
		if w.Ctx != nil {
			w.Refused = !adapter.BeginAnswer(w.Ctx, status < http.StatusBadRequest)
			MarkStuck(w.Ctx, w.ResponseWriter.Header(), status)
		}
		w.Answered = !w.Refused
	}
	return w.Answered
}

// MarkStuck marks a failure of a handler that its own callers keep from a lock.
func (w *Writer) MarkStuck(status int) {
	if w != nil && w.Ctx != nil {
		MarkStuck(w.Ctx, w.ResponseWriter.Header(), status)
	}
}

// Unwrap is for http.ResponseController.
func (w *Writer) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// WriteHeader sends the header. Informational ones (1xx) are not the answer yet,
// except the response that changes the protocol.
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

// FlushError sends the header and the buffered output.
func (w *Writer) FlushError() error {
	before := w.Answered
	if !w.begin(http.StatusOK) {
		return core.ErrLost
	}
	err := http.NewResponseController(w.ResponseWriter).Flush()
	w.Answered = before || !errors.Is(err, http.ErrNotSupported)
	return err
}

// ForHandler is the Writer as the handler gets it: an http.Flusher if a writer below
// can flush, and an http.Hijacker if one can be taken over. A handler that asserts
// such an interface learns from that whether to stream.
func (w *Writer) ForHandler() http.ResponseWriter {
	canFlush := below[http.Flusher](w.ResponseWriter) || below[interface{ FlushError() error }](w.ResponseWriter)
	canHijack := below[http.Hijacker](w.ResponseWriter)
	switch {
	case canFlush && canHijack:
		return both{w}
	case canFlush:
		return flusher{w}
	case canHijack:
		return hijacker{w}
	}
	return w
}

// below reports whether a writer, or a writer that it wraps, is a T: as
// http.ResponseController looks for it.
func below[T any](w http.ResponseWriter) bool {
	for {
		if _, ok := w.(T); ok {
			return true
		}
		outer, ok := w.(interface{ Unwrap() http.ResponseWriter })
		if !ok {
			return false
		}
		w = outer.Unwrap()
	}
}

type (
	flusher  struct{ *Writer }
	hijacker struct{ *Writer }
	both     struct{ *Writer }
)

// Flush is FlushError for those who assert http.Flusher.
func (w flusher) Flush() { _ = w.FlushError() }

// Flush is FlushError for those who assert http.Flusher.
func (w both) Flush() { _ = w.FlushError() }

// Hijack takes the connection over.
func (w hijacker) Hijack() (net.Conn, *bufio.ReadWriter, error) { return w.hijack() }

// Hijack takes the connection over.
func (w both) Hijack() (net.Conn, *bufio.ReadWriter, error) { return w.hijack() }

// hijack takes the connection over.
func (w *Writer) hijack() (net.Conn, *bufio.ReadWriter, error) {
	before := w.Answered
	if !w.begin(http.StatusSwitchingProtocols) {
		return nil, nil, core.ErrLost
	}
	conn, rw, err := http.NewResponseController(w.ResponseWriter).Hijack()
	w.Answered = before || err == nil
	return conn, rw, err
}
