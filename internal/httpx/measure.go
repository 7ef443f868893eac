package httpx

import (
	"context"
	"errors"
	"io"
	"net/http"
	"sync/atomic"
)

// Measured is a body that counts what was read.
type Measured struct {
	io.ReadCloser
	n     atomic.Int64
	ended atomic.Bool // it was read to its end
}

type measuredKey struct{}

// Measure begins to measure the body of a request, and returns the context in which what
// comes later finds the measure, also if other middleware wraps the body or replaces it.
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
