package admin

import (
	"time"

	"github.com/interlock-go/interlock/core/idempotency/endpoint"
)

// Resolution is the outcome of a request, found out by an operator or a job after it
// was unknown. [CarriedOut] and [NotCarriedOut] make one. The zero value is not valid:
// Engine.Resolve refuses it.
type Resolution struct {
	found    bool
	answer   *endpoint.Response // nil: it was not carried out
	protocol string
	step     string // of StepDone
	result   []byte
}

// CarriedOut says that the request had its effect. From now on requests with its key
// get this answer. For [endpoint.HTTP] it has status, header and body. For
// [endpoint.GRPC] it has the code, and the bytes of the message if the code is OK, else
// the bytes of a google.rpc.Status. For [endpoint.Func] it has the status
// [endpoint.FuncDone] and the encoded result. The protocol is the request's; an
// answer of another protocol is never sent (reason.NoRecord).
func CarriedOut(protocol string, answer endpoint.Response) Resolution {
	return Resolution{found: true, answer: &answer, protocol: protocol}
}

// StepDone says that the open step of the request (idempotency.Once) had its effect, with this
// result in its encoded form: JSON, unless the step has a codec. The next request with its key, or
// the job with its ticket, goes on after the step.
func StepDone(step string, result []byte) Resolution {
	return Resolution{found: true, step: step, result: result}
}

// Step returns the step of [StepDone] and its result. ok is false for another Resolution.
func (r Resolution) Step() (step string, result []byte, ok bool) {
	return r.step, r.result, r.step != ""
}

// NotCarriedOut says that the request had no effect, and will have none. The next
// request with its key is carried out. If steps of it are stored (idempotency.Step), NotCarriedOut is
// about the open step, or the effect that was marked, alone: the next request goes on after
// the stored steps.
func NotCarriedOut() Resolution { return Resolution{found: true} }

// Answer returns what requests with the key get from now on, and its protocol. answer is
// nil if the request was not carried out. found is false for the zero value.
func (r Resolution) Answer() (protocol string, answer *endpoint.Response, found bool) {
	return r.protocol, r.answer, r.found
}

// Claim describes a request with a record that this process has not settled yet.
type Claim struct {
	// Rule is the name of the endpoint (idempotency.Name); it may be empty.
	Rule string
	// Record is the name of the record: a hash of the principal and the key. The
	// name of its key in Redis ends with it.
	Record string
	// State names the outstanding step.
	State State
	// Generation is 1 for the first attempt at the request, and more for an attempt that
	// took over from a process that fell silent.
	Generation int64
	// Since is the time of the claim's request; the zero time if it was not answered.
	Since time.Time
	// Deadline is the end of the claim without another renewal; the zero time
	// if the handler did not run.
	Deadline time.Time
}

// State is the outstanding step of a [Claim].
type State string

// The states of a [Claim].
const (
	// Running: the handler runs.
	Running State = "running"
	// Storing: the client has its answer, and the store has not confirmed it yet.
	Storing State = "storing"
	// Releasing: the request was not carried out, and the store has not confirmed that
	// its key is free.
	Releasing State = "releasing"
)
