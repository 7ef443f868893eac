package httpx

import (
	"bufio"
	"compress/gzip"
	"context"
	"errors"
	"io"
	"net/http"
	"reflect"
	"strings"
	"sync"
	"sync/atomic"
)

// looked has the known facts of a body before it is read here.
type looked struct {
	request  *http.Request
	servers  bool    // the reader is net/http's own, and not some middleware's
	state    reading // of that reader
	measured *Measured
	before   int64 // how much of measured was read
}

// reading says whether a part of a body was read.
type reading int

const (
	unknown reading = iota
	untouched
	begun
)

// look looks at the body of a request.
func look(r *http.Request) looked {
	l := looked{request: r}
	own := serversOf(reflect.ValueOf(r.Body))
	l.servers = own.IsValid()
	if l.servers && r.ContentLength < 0 {
		l.state = chunksOf(own.FieldByName("src"))
	}
	if l.state != unknown && !chunksAreKnown() {
		l.state = unknown
	}
	if l.measured = measuredOf(r); l.measured != nil {
		l.before = l.measured.n.Load()
		if r.Body == io.ReadCloser(l.measured) {
			if l.state = untouched; l.before > 0 {
				l.state = begun
			}
		}
	}
	return l
}

// isWhole reports whether the remaining body can be all of it. The bytes that were read
// before say so, where they are known. Otherwise the length that was announced does.
func (l looked) isWhole(b []byte) bool {
	n, announced := int64(len(b)), l.request.ContentLength
	switch m := l.measured; {
	case m == nil:
	case l.before == 0 && (m.n.Load() > 0 || m.ended.Load()):
		return true // it was read here from its first byte, through all that stands between
	case l.before > 0 && m.ended.Load() && n == m.n.Load():
		return true // all of it was put back
	case l.before > 0 && n < m.n.Load() && !l.isUnzipped():
		return false
	}
	switch {
	case l.state != unknown:
		return l.state == untouched
	case announced > 0 && n == announced:
		return true
	case parsed(l.request): // there may be an epilogue left, which is not the body
		return false
	case n == 0:
		return announced == 0
	}
	return l.hasLength(b)
}

// hasLength reports whether a body can be all of the request's, by its length. A length that
// was not announced, or was announced for the body that another one was made of, says
// nothing: the remaining bytes are taken for all of it.
func (l looked) hasLength(b []byte) bool {
	if l.measured != nil && l.measured.ended.Load() && !l.isDecompressed() {
		return int64(len(b)) == l.measured.n.Load()
	}
	return int64(len(b)) >= l.request.ContentLength || l.isDecompressed()
}

// isUnknown reports whether it is unknown if there is no body, or if the body was read
// before.
func (l looked) isUnknown() bool {
	r := l.request
	return r.ContentLength < 0 && l.state == unknown && l.before == 0 && r.Body != nil && r.Body != http.NoBody
}

// isUnzipped reports whether middleware has unzipped the body, as gin and echo leave it.
func (l looked) isUnzipped() bool {
	_, unzipped := l.request.Body.(*gzip.Reader)
	return unzipped
}

// isDecompressed reports whether middleware may have put a body of another length in place of the
// client's. A body from net/http itself is the client's, also if the header names a coding.
func (l looked) isDecompressed() bool {
	return l.isUnzipped() || !l.servers && l.request.Header.Get("Content-Encoding") != ""
}

// serversOf returns the reader of a server of net/http that a body is, or the zero Value for
// a reader of some middleware.
func serversOf(body reflect.Value) reflect.Value {
	for {
		if body.Kind() == reflect.Interface {
			body = body.Elem()
		}
		if body.Kind() != reflect.Pointer || body.IsNil() || body.Elem().Kind() != reflect.Struct {
			return reflect.Value{}
		}
		body = body.Elem()
		switch kind := body.Type(); {
		case kind == reflect.TypeFor[Measured]():
			body = body.FieldByName("ReadCloser")
		case kind.PkgPath() != "net/http" && !strings.HasPrefix(kind.PkgPath(), "net/http/internal") && kind.PkgPath() != "golang.org/x/net/http2":
			return reflect.Value{}
		case kind.Name() == "maxBytesReader":
			body = body.FieldByName("r")
		case kind.Name() == "expectContinueReader":
			body = body.FieldByName("readCloser")
		default:
			return body
		}
	}
}

// chunksOf reports whether a reader of chunks (HTTP/1) has read any. net/http keeps that to
// itself, but the fields of the reader show it. They are not exported, and are only read, and only
// if they have the expected meaning in this version of Go ([chunksAreKnown]). Before the first
// chunk all of them have their zero value. In a chunk, n or checkEnd is set. After a chunk, buf
// has the end of the line; after the last one, err is set.
func chunksOf(src reflect.Value) reading {
	if src.Kind() != reflect.Interface || src.Elem().Kind() != reflect.Pointer {
		return unknown
	}
	chunks := src.Elem().Elem()
	if chunks.Kind() != reflect.Struct || chunks.Type().Name() != "chunkedReader" {
		return unknown
	}
	for _, name := range []string{"n", "checkEnd", "buf", "err"} {
		switch f := chunks.FieldByName(name); {
		case !f.IsValid():
			return unknown
		case !f.IsZero():
			return begun
		}
	}
	return untouched
}

// chunksAreKnown reports whether chunksOf is right in this version of Go, by bodies that
// are read byte by byte, and an empty body.
var chunksAreKnown = sync.OnceValue(func() bool {
	for _, body := range []string{"0\r\n\r\n", "1\r\na\r\n0\r\n\r\n", "2\r\nab\r\n3\r\ncde\r\n0\r\n\r\n"} {
		r, err := http.ReadRequest(bufio.NewReader(strings.NewReader("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n" + body)))
		if err != nil {
			return false
		}
		src := func() reading { return chunksOf(reflect.ValueOf(r.Body).Elem().FieldByName("src")) }
		if src() != untouched {
			return false
		}
		for err == nil {
			if _, err = r.Body.Read(make([]byte, 1)); src() != begun {
				return false
			}
		}
	}
	return true
})

// Measured is a body that counts the bytes read.
type Measured struct {
	io.ReadCloser
	n     atomic.Int64
	ended atomic.Bool // it was read to its end
}

type measuredKey struct{}

// Measure begins to measure the body of a request, and returns a context. Later middleware
// finds the measure in it, also if other middleware wraps the body or replaces it.
func Measure(r *http.Request) context.Context {
	if r.Body == nil || r.Body == http.NoBody || measuredOf(r) != nil {
		return r.Context()
	}
	m := &Measured{ReadCloser: r.Body}
	r.Body = m
	return context.WithValue(r.Context(), measuredKey{}, m)
}

func measuredOf(r *http.Request) *Measured {
	m, _ := r.Context().Value(measuredKey{}).(*Measured)
	return m
}

// Read implements io.Reader.
func (m *Measured) Read(p []byte) (int, error) {
	n, err := m.ReadCloser.Read(p)
	m.n.Add(int64(n))
	if errors.Is(err, io.EOF) {
		m.ended.Store(true)
	}
	return n, err
}
