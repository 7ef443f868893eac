package idempotency

import (
	"context"

	"github.com/interlock-go/interlock/core"
)

// The protocols that the engine knows the statuses of.
const (
	// HTTP is what an adapter for HTTP returns from [Call.Protocol]. A status is an
	// HTTP status.
	HTTP = "http"
	// GRPC is what an adapter for gRPC returns from [Call.Protocol]. A status is a
	// gRPC code.
	GRPC = "grpc"
	// Func is the protocol of a function ([Do]). A status is 0 for a result, 1 for an
	// error that the function gave as its answer ([Final]), and 2 for another error.
	// The body is the encoded result, or the text of the error.
	Func = "func"
)

// The statuses of [Func].
const (
	funcDone = iota
	funcFinal
	funcFailed
)

const (
	// KeyHeader is the header of the idempotency key (the IETF draft "The
	// Idempotency-Key HTTP Header Field"). In gRPC it is metadata with this name in
	// lower case.
	KeyHeader = "Idempotency-Key"
	// ReplayedHeader is set to "true" on a response that was replayed.
	ReplayedHeader = "Idempotent-Replayed"
)

// Call is what the engine asks of a request, in every protocol: what a guard asks
// ([core.Request]), and what makes two requests the same. An adapter hands values
// over as they came; the engine parses the key itself.
type Call interface {
	core.Request

	// Protocol returns [HTTP] or [GRPC], and for a function [Func]. A key that was
	// used in one protocol is refused in the others.
	Protocol() string

	// Key returns all values that the request gives as the idempotency key: none if
	// there is no such header, one empty value if it is empty.
	Key() []string

	// Target returns what the request asks for besides its body: the method, the
	// decoded path (with its values, not the pattern) and the query as it came. In
	// gRPC the path is the full method and the others are empty.
	Target() (method, path, query string)

	// Origin returns what the client asked for, before routers and middleware
	// changed it: the host, and path and query of the request URI. The path has the
	// form of that of Target. In gRPC the host is the authority, and the path the
	// full method.
	Origin() (host, path, query string)
}

// Handler runs what is behind the endpoint. [Engine.Do] calls one of the two
// functions, at most once, on its caller's goroutine.
type Handler struct {
	// Run runs the handler under ctx and captures its answer instead of sending it.
	// It reports whether the handler gave an answer of its own: it wrote a header,
	// or the RPC succeeded. When an answer grows over [Attempt.Limit], Run first
	// calls [Attempt.TooLarge]; then the answer may leave.
	Run func(ctx context.Context, attempt *Attempt) (answer Response, answered bool)

	// Pass runs the handler under ctx and lets its answer through, because no part
	// of it is to be stored: the method has no effects, the key is optional and
	// missing, or the endpoint fails open. It reports whether the client has been
	// answered in a way that cannot be taken back, as for [core.Guard.Do].
	Pass func(ctx context.Context) (answered bool)
}

// Response is a captured answer. A stored one lacks the header fields that must not
// be sent a second time; see [ReplayHeaders].
type Response struct {
	// Status is the HTTP status or the gRPC code.
	Status int
	// Header holds the header fields (in gRPC metadata). The names are as the
	// protocol has them; each value stands on its own.
	Header map[string][]string
	// Body is the body. In gRPC it is the message if the code is OK, else the
	// google.rpc.Status with its details. The body of a [Verdict.Replay] must not
	// be written to: it shares its memory with the stored envelope.
	Body []byte
	// Trailer holds what is sent after the body.
	Trailer map[string][]string
}

// Verdict says what the client gets. With neither field set it is what the handler
// returned: the response that Run captured, or nothing more after Pass.
type Verdict struct {
	// Refusal, unless nil, is to be answered instead of everything that the handler
	// may have returned. Its Ran says whether the handler ran.
	Refusal *core.Refusal
	// Replay, unless nil, is a stored response. It is to be sent as it is, with
	// [ReplayedHeader] set.
	Replay *Response

	inside *core.Refusal // of a guard in the handler, which has answered it
}

// outcome is what outcome.Report is told.
func (v Verdict) outcome() *core.Refusal {
	if v.Refusal != nil {
		return v.Refusal
	}
	return v.inside
}
