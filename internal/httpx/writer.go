package httpx

import (
	"bufio"
	"errors"
	"io"
	"net"
	"net/http"
)

// Writer notes whether a response was begun. It keeps what the writer below can
// do: http.ResponseController finds that by Unwrap, handlers that assert
// http.Flusher, http.Hijacker, io.ReaderFrom or io.StringWriter find these.
// Like the writer below it is not safe for concurrent use.
type Writer struct {
	http.ResponseWriter
	// Answered says that the header is on its way, or that the connection was
	// taken over: the answer can no longer be replaced.
	Answered bool
}

// Unwrap is for http.ResponseController.
func (w *Writer) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// WriteHeader sends the header. Informational ones (1xx) are not the answer yet,
// except the one that changes the protocol.
func (w *Writer) WriteHeader(status int) {
	if status >= 200 || status == http.StatusSwitchingProtocols {
		w.Answered = true
	}
	w.ResponseWriter.WriteHeader(status)
}

// Write writes a part of the body.
func (w *Writer) Write(b []byte) (int, error) {
	w.Answered = true
	return w.ResponseWriter.Write(b)
}

// WriteString spares io.WriteString a copy.
func (w *Writer) WriteString(s string) (int, error) {
	w.Answered = true
	return io.WriteString(w.ResponseWriter, s)
}

// ReadFrom lets io.Copy reach the writer below, which may use sendfile. A source
// that fails at once has begun nothing.
func (w *Writer) ReadFrom(r io.Reader) (int64, error) {
	n, err := io.Copy(w.ResponseWriter, r)
	w.Answered = w.Answered || n > 0
	return n, err
}

// FlushError sends what is buffered, and the header before it.
func (w *Writer) FlushError() error {
	err := http.NewResponseController(w.ResponseWriter).Flush()
	w.Answered = w.Answered || !errors.Is(err, http.ErrNotSupported)
	return err
}

// Flush is FlushError for those who assert http.Flusher.
func (w *Writer) Flush() { _ = w.FlushError() }

// Hijack takes the connection over.
func (w *Writer) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	conn, rw, err := http.NewResponseController(w.ResponseWriter).Hijack()
	w.Answered = w.Answered || err == nil
	return conn, rw, err
}
