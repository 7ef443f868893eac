package idempotency

import (
	"context"

	"github.com/interlock-go/interlock/core"
)

// The protocols that the engine knows the statuses of.
const (
	// HTTP is what an adapter for HTTP returns from Call.Protocol. A status is
	// an HTTP status.
	HTTP = "http"
	// GRPC is what an adapter for gRPC returns. A status is a gRPC code.
	GRPC = "grpc"
)

const (
	// KeyHeader is the header of the idempotency key (the IETF draft "The
	// Idempotency-Key HTTP Header Field"); in lower case the gRPC metadata.
	KeyHeader = "Idempotency-Key"
	// ReplayedHeader is set to "true" on a response that was replayed.
	ReplayedHeader = "Idempotent-Replayed"
)

// Call is what the engine asks of a request, whatever the protocol: what a guard
// asks, and what makes two requests the same. Values are handed over as they
// came; the engine parses the key itself.
type Call interface {
	core.Request

	// Protocol is HTTP or GRPC. A key that was used in one is refused in the
	// other.
	Protocol() string

	// Key returns all values that were given as the idempotency key: none if
	// there is no such header, one empty if it is empty.
	Key() []string

	// Target returns what was asked for besides the body: the method, the
	// decoded path (with its values, not the pattern) and the query as it came.
	// In gRPC the path is the full method and the others are empty.
	Target() (method, path, query string)

	// Origin returns what the client asked for, before routers and middleware
	// changed it: the host, and path and query of the request URI, the path in the
	// form of Target. In gRPC the host is the authority, and the path the full
	// method.
	Origin() (host, path, query string)
}

// Handler runs what is behind the endpoint. One of the two is called, at most
// once, on the caller's goroutine.
type Handler struct {
	// Run runs the handler under ctx and captures its answer instead of sending
	// it. It reports whether the handler gave an answer of its own: it wrote a
	// header, or the RPC succeeded. An answer that grows over Attempt.Limit is
	// handed to Attempt.TooLarge first, and then may leave.
	Run func(ctx context.Context, attempt *Attempt) (answer Response, answered bool)

	// Pass runs the handler under ctx and lets its answer through, since
	// nothing of it is to be stored: the method has no effects, the key is
	// optional and missing, or the endpoint fails open. It reports whether the
	// client has been answered in a way that cannot be taken back, as for
	// core.Guard.Do.
	Pass func(ctx context.Context) (answered bool)
}

// Response is a captured answer. Of one that is stored, headers that must not be
// sent a second time are left out; see ReplayHeaders.
type Response struct {
	// Status is the HTTP status or the gRPC code.
	Status int
	// Header holds header fields (gRPC: metadata), names as the protocol has
	// them, each value on its own.
	Header map[string][]string
	// Body is the body. In gRPC, the message if the code is OK, else the
	// google.rpc.Status with its details. Of a Replay it is shared with the
	// envelope, and must not be written to.
	Body []byte
	// Trailer holds what is sent after the body.
	Trailer map[string][]string
}

// Verdict says what the client gets. With neither field set it is what the
// handler returned: the response that Run captured, or nothing more after Pass.
type Verdict struct {
	// Refusal, unless nil, is to be answered instead of everything that the
	// handler may have returned. Its Ran says whether the handler ran.
	Refusal *core.Refusal
	// Replay, unless nil, is a stored response, to be sent as it is, with
	// ReplayedHeader set.
	Replay *Response

	inside *core.Refusal // of a guard in the handler, which has answered it
}

// outcome is what core.ReportOutcome is told.
func (v Verdict) outcome() *core.Refusal {
	if v.Refusal != nil {
		return v.Refusal
	}
	return v.inside
}
