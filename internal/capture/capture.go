// Package capture holds back an HTTP response until it has been stored, and sends a
// response that was stored. It is the common code of Idempotent in httplock, ginlock
// and echolock.
//
// A handler writes to a Writer, which looks to it like any other: the Writer keeps
// the handler's output, a flush waits. When it is done, the adapter gives Response
// to the engine, and then does as the engine says: Send the captured response, or
// Replay the stored one. A response that grows over the limit is settled with the
// engine at that moment, and from then on goes straight through.
package capture

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/idempotency"
	"github.com/interlock-go/interlock/core/idempotency/endpoint"
	"github.com/interlock-go/interlock/internal/httpx"
)

// Writer captures the output of a handler. Like any http.ResponseWriter it is not safe for
// concurrent use.
type Writer struct {
	ctx     context.Context // of the handler
	under   http.ResponseWriter
	attempt endpoint.Attempt

	before http.Header // as the handler found it
	live   http.Header // the handler's view
	sent   http.Header // as it was when the header was written; nil before
	status int         // 0: no header was written
	body   []byte
	size   int64
	state  state
}

// state is where the response is.
type state int

const (
	holding state = iota // it is kept
	leaving              // over the limit: output goes to the writer below
	dropped              // none of it is sent: another attempt's counts instead, or it broke off
	failed               // see Fail
	evaded               // the response was written to the writer below
)

// errDropped is the error of a handler that continues to write a response that no client will
// see.
var errDropped = errors.New("interlock: the response is not sent: another attempt has answered the request, " +
	"or the handler has reported an error")

// Why a response broke off.
var (
	errPanicked = errors.New("interlock: the handler panicked")
	errStatus   = errors.New("interlock: a status of failure followed the status of success")
	errLength   = errors.New("interlock: the body is not as long as its Content-Length")
)

// New returns a Writer for a response that is to go to the writer below. ctx is the context of the handler.
func New(ctx context.Context, below http.ResponseWriter, attempt endpoint.Attempt) *Writer {
	// The handler sees what middleware in front of it has set, and may change it. The
	// header below stays as that middleware has it until the response is sent, and for
	// good if it is not sent. Middleware that adds values later appends to its own
	// slices.
	header := below.Header()
	return &Writer{ctx: ctx, under: below, attempt: attempt, before: maps.Clone(header), live: header.Clone()}
}

// Unwrap is for http.ResponseController, which finds deadlines by it. Other
// code that writes to the writer below evades the capture.
func (w *Writer) Unwrap() http.ResponseWriter { return w.under }

// Header returns the header, which after it was written is only good for
// trailers.
func (w *Writer) Header() http.Header {
	if w.live == nil {
		w.live = http.Header{}
	}
	return w.live
}

// Answered says that the handler has written a header.
func (w *Writer) Answered() bool { return w.status != 0 }

// Status is the status that was written, 0 for none.
func (w *Writer) Status() int { return w.status }

// Size is the length of the body so far.
func (w *Writer) Size() int64 { return w.size }

// WriteHeader notes status and header: of later fields only trailers count, as
// with net/http. Informational responses are not sent, since nothing may leave
// before the answer is stored.
func (w *Writer) WriteHeader(status int) {
	switch {
	case status < 100 || status > 999:
		// As net/http does: found out now, and not after it was stored.
		panic(fmt.Sprintf("invalid WriteHeader code %v", status))
	case w.status != 0:
		if status >= http.StatusInternalServerError {
			w.BreakOff(errStatus) // middleware that recovers from a panic says so like this
		}
		return
	case status < 200 && status != http.StatusSwitchingProtocols:
		return
	}
	w.status = status
	w.sent = w.Header().Clone()
	maps.DeleteFunc(w.sent, func(name string, _ []string) bool { return strings.HasPrefix(name, http.TrailerPrefix) })
}

// Write captures a part of the body.
func (w *Writer) Write(b []byte) (int, error) {
	if err := w.begin(len(b)); err != nil {
		return 0, err
	}
	if w.state == leaving {
		n, err := w.under.Write(b)
		w.size += int64(n)
		return n, err
	}
	w.body = append(w.body, b...)
	w.size += int64(len(b))
	return len(b), nil
}

// WriteString spares io.WriteString a copy.
func (w *Writer) WriteString(s string) (int, error) {
	if err := w.begin(len(s)); err != nil {
		return 0, err
	}
	if w.state == leaving {
		n, err := io.WriteString(w.under, s)
		w.size += int64(n)
		return n, err
	}
	w.body = append(w.body, s...)
	w.size += int64(len(s))
	return len(s), nil
}

// begin prepares for n bytes more of the body.
func (w *Writer) begin(n int) error {
	if w.status == 0 {
		w.WriteHeader(http.StatusOK)
	}
	switch {
	case w.state == dropped:
		return errDropped
	case !hasBody(w.status):
		return http.ErrBodyNotAllowed
	case w.state != holding || w.size+int64(n) <= w.attempt.Limit():
		return nil
	}
	if !w.attempt.TooLarge(w.status) {
		w.state, w.body = dropped, nil
		return errDropped
	}
	w.state = leaving
	w.first(nil)
	w.under.WriteHeader(w.status)
	_, err := w.under.Write(w.body)
	w.body = nil
	return err
}

// first makes the header of a first answer. inside is the refusal of a guard inside the handler; nil if there is
// none. The marks of another service go, which a reverse proxy copies.
func (w *Writer) first(inside *core.Refusal) {
	header := w.under.Header()
	apply(header, w.before, w.sent)
	header.Del(idempotency.ReplayedHeader)
	header.Del(idempotency.InterimHeader)
	header.Del(idempotency.ResultHeader)
	if inside == nil {
		httpx.MarkStuck(w.ctx, header, w.status)
	}
	if header.Get(idempotency.ResultHeader) == "" {
		header.Set(idempotency.ResultHeader, idempotency.Result(inside))
	}
}

// hasBody reports whether a response with this status has a body (RFC 9110,
// 6.4.1).
func hasBody(status int) bool {
	return status >= 200 && status != http.StatusNoContent && status != http.StatusNotModified
}

// FlushError writes the header, and otherwise waits: nothing may leave before the answer is
// stored. A longer response is flushed anyway.
func (w *Writer) FlushError() error {
	if w.status == 0 {
		w.WriteHeader(http.StatusOK)
	}
	if w.state == leaving {
		return http.NewResponseController(w.under).Flush()
	}
	return nil
}

// Flush is FlushError for those who assert http.Flusher.
func (w *Writer) Flush() { _ = w.FlushError() }

// Hijack is refused: data on a connection that was taken over cannot be sent a second time.
func (w *Writer) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	return nil, nil, fmt.Errorf("interlock: an idempotent endpoint cannot hand over its connection: %w", http.ErrNotSupported)
}

// Fail says that the handler has failed, and left it to others to say so. If it
// has written nothing, that is a 500, or the status if it is such: it must not
// pass for an empty 200.
func (w *Writer) Fail(status int) {
	if w.status == 0 {
		w.WriteHeader(max(status, http.StatusInternalServerError))
		w.state = failed
	}
}

// Failed reports whether there is nothing but the status of Fail.
func (w *Writer) Failed() bool { return w.state == failed }

// Evade says that the response was written to the writer below, with this status: the
// framework has put its own writer back. The client has it, and it cannot be replayed.
func (w *Writer) Evade(status int) {
	if w.state != holding {
		return
	}
	w.attempt.TooLarge(status) // first: a retry may come at once
	w.attempt.Fault("interlock: the handler of an idempotent endpoint has answered past the middleware; "+
		"the response is not stored, and a retry is refused", fmt.Errorf("interlock: the framework has sent the status %d", status))
	w.status, w.sent, w.body, w.state = status, http.Header{}, nil, evaded
}

// Run runs the handler. A panic passes through.
func (w *Writer) Run(handler func()) {
	returned := false
	defer func() {
		if !returned { // a panic, or runtime.Goexit
			w.BreakOff(errPanicked)
		}
	}()
	handler()
	returned = true
}

// BreakOff says that the handler has reported an error. If it had begun a response of success,
// nobody gets the part that there is. The first client and its retries get a refusal.
func (w *Writer) BreakOff(err error) {
	if w.state != holding || w.status == 0 || w.status >= http.StatusBadRequest {
		return
	}
	w.state, w.body = dropped, nil
	w.attempt.BrokenOff(err)
}

// isCut makes a failure of a response that is not as long as its Content-Length says: the
// source of its body has broken off, or the handler has miscounted. net/http would break the
// connection off, and a replay would pass the part for the whole.
func (w *Writer) isCut(said string) bool {
	if w.state != holding || !hasBody(w.status) || said == strconv.FormatInt(w.size, 10) {
		return false
	}
	if w.status < http.StatusBadRequest {
		w.BreakOff(errLength)
		return true
	}
	w.attempt.Fault("interlock: the response of an idempotent endpoint is not as long as its Content-Length; "+
		"it is answered with 500 and not stored", fmt.Errorf("%w: %.40q is declared, and %d bytes were written", errLength, said, w.size))
	w.status, w.sent, w.body, w.size = http.StatusInternalServerError, w.before.Clone(), nil, 0
	return true
}

// Response returns the response to store after the handler, and whether the handler
// gave an answer. For a handler that wrote nothing the status is implied, as frameworks
// send it then; an informational status is not an answer, and net/http then implies
// 200.
//
// Header fields are the fields that the handler has changed; middleware in front of it sets
// its own fields again. A field that it has removed has no values.
func (w *Writer) Response(implied int) (answer endpoint.Response, answered bool) {
	answered = w.status != 0 && w.state != failed
	if w.status == 0 && implied >= 200 {
		w.WriteHeader(implied)
	}
	if w.status == 0 {
		w.WriteHeader(http.StatusOK)
	}
	if said := w.sent.Get("Content-Length"); answered && said != "" && w.isCut(said) {
		answered = false
	}
	return endpoint.Response{Status: w.status, Header: changes(w.before, w.sent), Body: w.body, Trailer: w.trailer()}, answered
}

// trailer collects the trailers of net/http at the end of a handler: fields that the header
// Trailer has announced, and those with its prefix.
func (w *Writer) trailer() map[string][]string {
	var trailer map[string][]string
	add := func(name string, values []string) {
		if len(values) == 0 {
			return
		}
		if trailer == nil {
			trailer = make(map[string][]string)
		}
		trailer[name] = values
	}
	if len(w.sent["Trailer"]) > 0 {
		for name := range announced(w.sent) {
			add(name, w.live[name])
		}
	}
	for name, values := range w.live {
		if name, ok := strings.CutPrefix(name, http.TrailerPrefix); ok {
			add(http.CanonicalHeaderKey(name), values)
		}
	}
	return trailer
}

// announced ranges over the names in the header Trailer.
func announced(header http.Header) func(yield func(string) bool) {
	return func(yield func(string) bool) {
		for _, list := range header["Trailer"] {
			for name := range strings.SplitSeq(list, ",") {
				if name = strings.TrimSpace(name); name != "" && !yield(http.CanonicalHeaderKey(name)) {
					return
				}
			}
		}
	}
}

// Send sends the captured response as the handler wrote it, with the mark of its result. A
// guard inside the handler has refused the request if inside is not nil. Of a response over the
// limit the trailers are left.
func (w *Writer) Send(inside *core.Refusal) {
	switch w.state {
	case leaving:
		header := w.under.Header()
		said := slices.Collect(announced(w.sent))
		for name, values := range w.trailer() {
			if !slices.Contains(said, name) {
				name = http.TrailerPrefix + name // it comes unannounced
			}
			header[name] = values
		}
	case holding, failed:
		w.first(inside)
		send(w.under, w.status, w.body, w.trailer())
	case dropped, evaded:
	}
}

// Replay sends a response that was stored. It says its length if the first one
// did: net/http finds out the length of a short response only, and sends others in chunks.
func Replay(w http.ResponseWriter, r *endpoint.Response) {
	header := w.Header()
	for name, values := range r.Header {
		if len(values) == 0 && len(header[name]) > 0 {
			delete(header, name) // the handler has removed it
			continue
		}
		header[name] = values // none tells net/http not to make one
	}
	if _, said := r.Header["Content-Length"]; said {
		if header.Del("Content-Length"); hasBody(r.Status) && len(r.Trailer) == 0 {
			header.Set("Content-Length", strconv.Itoa(len(r.Body)))
		}
	}
	header.Set(idempotency.ReplayedHeader, "true")
	header.Set(idempotency.ResultHeader, idempotency.ResultAnswered)
	send(w, r.Status, r.Body, r.Trailer)
}

// send writes a response after its header is complete. Trailers are announced, and with it
// sent in either version of HTTP.
func send(w http.ResponseWriter, status int, body []byte, trailer map[string][]string) {
	header := w.Header()
	if len(trailer) > 0 {
		header["Trailer"] = slices.Sorted(maps.Keys(trailer))
	}
	w.WriteHeader(status)
	if len(body) > 0 {
		_, _ = w.Write(body) // the client may have gone meanwhile
	} else if g, ok := w.(interface{ WriteHeaderNow() }); ok && len(trailer) > 0 {
		g.WriteHeaderNow() // gin has only noted the status, and would send trailers as headers
	}
	maps.Copy(header, trailer)
}
