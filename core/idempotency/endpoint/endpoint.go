package endpoint

import (
	"context"
	"errors"
	"time"

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
	// Func is the protocol of a function (package once). A status is [FuncDone],
	// [FuncFinal] or [FuncFailed]. The body is the encoded result, or the text of the
	// error.
	Func = "func"
)

// The statuses of [Func].
const (
	// FuncDone: the body is the encoded result.
	FuncDone = iota
	// FuncFinal: the body is the text of an error that the function gave as its
	// answer.
	FuncFinal
	// FuncFailed: the body is the text of another error.
	FuncFailed
)

// Call answers the engine's questions about a request, in every protocol: the questions
// of a guard ([core.Request]), and the parts that make two requests the same. An
// adapter hands values over as they came.
type Call interface {
	core.Request

	// Protocol returns [HTTP] or [GRPC], and for a function [Func]. A key that was
	// used in one protocol is refused in the others.
	Protocol() string

	// Key returns the idempotency key. Its error matches [ErrKeyMissing] or
	// [ErrKeyMalformed]; [ParseKey] reads a key that a client has sent.
	Key() (string, error)

	// Target returns the target of the request: the method, the decoded path (with its
	// values, not the pattern) and the query as it came. In gRPC the path is the full
	// method and the others are empty.
	Target() (method, path, query string)

	// Origin returns the target that the client sent, before routers and middleware changed
	// it: the host, and path and query of the request URI. The path has the same form as in
	// Target. In gRPC the host is the authority, and the path the full method.
	Origin() (host, path, query string)
}

// Scoper is a [Call] that determines the scope of its key. The engine makes the name of
// a record of the scope and the key. The scope of any other Call is its principal.
type Scoper interface {
	Call

	// Scope returns the scope. The function principal returns the principal as the
	// engine finds it: the empty string under idempotency.Global, otherwise the result of
	// the function given to idempotency.Scope, or [ErrNoPrincipal]. The request is refused
	// with the error of Scope as with an error of that function.
	Scope(principal func() (string, error)) (string, error)
}

// ErrNoPrincipal says that the function given to idempotency.Scope found no principal.
var ErrNoPrincipal = errors.New("interlock: the Scope function found no principal")

// Handler runs the handler of the endpoint. Engine.Do calls at most one of the two
// functions, at most once, on its caller's goroutine.
type Handler struct {
	// Run runs the handler under ctx and captures its answer instead of sending it.
	// It reports whether the handler gave an answer: it wrote a header, or the RPC
	// succeeded. When an answer grows over [Attempt.Limit], Run first calls
	// [Attempt.TooLarge]; then the answer may leave.
	Run func(ctx context.Context, attempt Attempt) (answer Response, answered bool)

	// Pass runs the handler under ctx and lets its answer through, because no part
	// of it is to be stored: the method has no effects, the key is optional and
	// missing, or the endpoint fails open. It reports whether the client has been
	// answered in a way that cannot be taken back, as for [core.Guard.Do].
	Pass func(ctx context.Context) (answered bool)
}

// Attempt is one run of a handler for a record. The engine makes it. Its methods are
// safe for concurrent use.
type Attempt interface {
	// Limit returns the length of the longest answer that is stored, in bytes; see
	// idempotency.MaxResponse.
	Limit() int64

	// Lease returns the lease of the claim; see idempotency.Lease. After the loss of a
	// claim its record is in flight for so long.
	Lease() time.Duration

	// TooLarge stores that the response is not available, and reports whether the
	// answer may be sent: first the captured part, and then the rest, as it comes. The
	// capture calls it when an answer with this status has grown over Limit, or cannot be
	// captured, before any part of it leaves.
	//
	// If TooLarge returns false, another attempt has taken over, the guard checks
	// answers ([core.CheckAnswer]) and the lock was lost, or the handler has a
	// transaction (record.Enlist). The adapter drops the answer, and the [Verdict] has
	// the other attempt's answer, or the refusal. Later calls return the same.
	TooLarge(status int) (send bool)

	// BrokenOff says that the handler began a response of success and did not finish it:
	// it reported an error, panicked, or wrote another length than it had declared. Nothing
	// of the response was sent. The engine stores that the response is not available, and
	// the [Verdict] has the refusal. A transaction (record.Enlist) is rolled back.
	BrokenOff(err error)

	// Unwritten logs, once a minute, that the handler has returned and has written neither
	// a status nor a body. net/http answers 200 with no body, which is stored. That may be
	// meant; or a bridge from another framework writes the answer, or runs the handler,
	// only after the middleware has returned.
	Unwritten()

	// Fault logs, once a minute for each text, that the handler or its framework has answered in a way that
	// keeps the answer from the client or from retries. The text is a constant; err has the details. Fault
	// waits for the handler of the log for 50 ms at most.
	Fault(text string, err error)
}

// Response is a captured answer. A stored one lacks the header fields that must not
// be sent a second time; see idempotency.ReplayHeaders.
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
	// Trailer holds the fields to send after the body.
	Trailer map[string][]string
}

// Verdict is the answer for the client. With neither field set it is the answer of the
// handler: the response that Run captured, or nothing more after Pass.
type Verdict struct {
	// Refusal, unless nil, is to be answered instead of everything that the handler
	// may have returned. Its Ran says whether the handler ran.
	Refusal *core.Refusal
	// Replay, unless nil, is a stored response. It is to be sent as it is, with
	// idempotency.ReplayedHeader set.
	Replay *Response
	// Inside, unless nil, is the refusal of a guard inside the handler. Run has captured its
	// answer, which over HTTP has the mark idempotency.Result of it.
	Inside *core.Refusal
}
