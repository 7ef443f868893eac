// Package requests gives functions of the application a request with copied slices. A KeyFunc, a
// Scope or a Fingerprint function may sort them and write to them. The handler, and the engine
// that has yet to hash the body, see the request as it came.
package requests

import (
	"bytes"
	"slices"

	"github.com/interlock-go/interlock/core/adapter"
)

// Copy returns the request as a function of the application gets it.
func Copy(req adapter.Request) adapter.Request { return request{req} }

type request struct{ adapter.Request }

func (r request) Header(name string) []string { return slices.Clone(r.Request.Header(name)) }

func (r request) Query(name string) []string { return slices.Clone(r.Request.Query(name)) }

func (r request) Body(limit int64) ([]byte, error) {
	b, err := r.Request.Body(limit)
	return bytes.Clone(b), err
}
