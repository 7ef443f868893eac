package httpx

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"os"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/adapter"
)

// errRead is the server's mistake: the rest of a body is not the body. Taken for it, it would
// make one request of all that differ in the missing part.
var errRead = fmt.Errorf("%w: the request body was read in front of the rule or idempotent endpoint that needs it: "+
	"put the middleware that reads it behind, or have it set Request.Body to what it has read; "+
	"middleware that decompresses the body has to set Request.ContentLength to -1, or to stand in front of MeasureBody", core.ErrConfig)

// errNothing may be a client that sends an empty body and does not say so, or middleware
// that has read the body. A client can cause it, so it is the client's.
var errNothing = fmt.Errorf("%w: a body of unknown length has nothing left: it is empty, or was read in front; "+
	"an empty body is announced by Content-Length: 0, and behind MeasureBody the two can be told apart", adapter.ErrBody)

// Body is BodyOr for frameworks that keep no body.
func (q Request) Body(limit int64) ([]byte, error) { return q.BodyOr(limit, nil) }

// BodyOr returns the body, and sets it anew, so that later readers read it whole. It is read
// once, into one buffer that all share and nothing may write to.
//
// A body that was read before is restored: from the form that was parsed of it, or
// from kept, the copy that the framework has kept. Where that cannot be, the error
// matches core.ErrConfig.
func (q Request) BodyOr(limit int64, kept []byte) ([]byte, error) {
	r := q.Request
	if w, ok := r.Body.(*whole); ok { // ours: all of it is there, also the part read since
		if int64(len(w.all)) > limit {
			return nil, adapter.ErrBodyLimit
		}
		return w.all, nil
	}
	l := look(r)
	if r.ContentLength > limit && l.servers { // else it may be the length of another body
		return nil, adapter.ErrBodyLimit // not a byte of it need be waited for
	}
	b, err := q.rest(limit)
	closed := errors.Is(err, http.ErrBodyReadAfterClose)
	if closed {
		err = nil // it was read, and closed
	}
	if err == nil && (closed || !l.isWhole(b)) {
		gone := errRead
		if !closed && l.isUnknown() {
			gone = errNothing
		}
		b, err = l.restored(limit, kept, gone)
	}
	if err != nil || len(b) == 0 {
		return nil, err
	}
	body := r.Body
	if body == nil {
		body = http.NoBody
	}
	r.Body = &whole{*bytes.NewReader(b), body, b}
	return b, nil
}

// rest reads the remaining body. If that is not the body, it is put back.
func (q Request) rest(limit int64) ([]byte, error) {
	body := q.Request.Body
	if body == nil || body == http.NoBody {
		return nil, nil
	}
	b, err := readAll(body, q.ContentLength, limit)
	if err == nil && int64(len(b)) <= limit {
		return b, nil
	}
	if errors.Is(err, http.ErrBodyReadAfterClose) {
		return nil, err // there is nothing to put back
	}
	q.Request.Body = struct {
		io.Reader
		io.Closer
	}{io.MultiReader(bytes.NewReader(b), body), body}
	var outer *http.MaxBytesError // middleware in front has a smaller limit
	var slow interface{ Timeout() bool }
	switch {
	case err == nil, errors.As(err, &outer):
		return nil, adapter.ErrBodyLimit
	case errors.Is(err, os.ErrDeadlineExceeded), errors.As(err, &slow) && slow.Timeout():
		return nil, fmt.Errorf("%w: %w", adapter.ErrBodyTimeout, err)
	}
	return nil, fmt.Errorf("%w: %w", adapter.ErrBody, err)
}

const (
	// firstRoom bounds the room that is made for a body before it has come: a length that a
	// client announces and does not send costs no more than this.
	firstRoom = 64 << 10
	// spareRoom is for the read that finds the end.
	spareRoom = 512
)

// readAll reads to the end, or one byte more than the limit, which tells a body of
// that length from a longer one. An announced length only bounds the buffer's
// growth beyond the received bytes.
func readAll(from io.Reader, announced, limit int64) ([]byte, error) {
	most := min(limit, math.MaxInt64-1) + 1
	expected := int(min(max(announced, 0), most)) + spareRoom
	b := make([]byte, 0, min(expected, firstRoom+spareRoom))
	for int64(len(b)) < most {
		if len(b) == cap(b) {
			size := 2 * cap(b)
			if expected > cap(b) {
				size = min(size, expected)
			}
			grown := make([]byte, len(b), size)
			copy(grown, b)
			b = grown
		}
		n, err := from.Read(b[len(b):int(min(int64(cap(b)), most))])
		b = b[:len(b)+n]
		if err == io.EOF {
			return b, nil
		}
		if err != nil {
			return b, err
		}
	}
	return b, nil
}

// whole is a body that was read to its end, to be read again.
type whole struct {
	bytes.Reader
	io.Closer
	all []byte
}
