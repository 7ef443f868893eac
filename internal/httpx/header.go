package httpx

import (
	"context"
	"maps"
	"net/http"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/adapter"
	"github.com/interlock-go/interlock/core/idempotency"
	"github.com/interlock-go/interlock/core/reason"
)

// Original is a response header as it was before the handler touched it. The
// zero value has noted nothing yet.
type Original struct {
	header http.Header
	noted  bool
}

// Note notes the header when it is called first, and returns it. A writer calls
// it when a handler asks for the header: a handler that does not costs nothing.
func (o *Original) Note(header http.Header) http.Header {
	if !o.noted {
		// Values that are added later go to new slices.
		o.header, o.noted = maps.Clone(header), true
	}
	return header
}

// Restore puts the header back for a refusal that is answered instead of the
// handler: the handler's fields describe an answer that it did not give (ETag,
// Content-Encoding, Location, a cookie).
func (o *Original) Restore(header http.Header) {
	if o.noted {
		clear(header)
		maps.Copy(header, o.header)
	}
}

// MarkStuck sets the mark of a failure of a handler that its own callers keep from a lock
// ([adapter.IsStuck]), unless the header has a mark.
func MarkStuck(ctx context.Context, header http.Header, status int) {
	if status >= http.StatusInternalServerError && header.Get(idempotency.ResultHeader) == "" && adapter.IsStuck(ctx) {
		header.Set(idempotency.ResultHeader, idempotency.Result(&core.Refusal{Reason: reason.HeldByCaller, Ran: true}))
	}
}
