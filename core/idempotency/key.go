package idempotency

import (
	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/internal/carrier"
)

const (
	// KeyHeader is the header of the idempotency key (the IETF draft "The
	// Idempotency-Key HTTP Header Field"). In gRPC it is metadata with this name in
	// lower case.
	KeyHeader = "Idempotency-Key"
	// ReplayedHeader is set to "true" on a response that was replayed.
	ReplayedHeader = "Idempotent-Replayed"
	// InterimHeader is set to "true" on a replay of an interim answer ([HandOver]): the final
	// answer is not there yet. In gRPC it is metadata with this name in lower case.
	InterimHeader = "Idempotent-Interim"
	// ResultHeader marks the responses of guards and idempotent endpoints over HTTP, so that a
	// client can tell them from the responses of a proxy, or of middleware in front. It is
	// [ResultAnswered], or the reason of a refusal ([reason.Reason]), which has the parameter
	// ";ran" if the handler ran. In gRPC the trailer of a handler's answer has it, in lower case.
	ResultHeader = carrier.ResultHeader
	// ResultAnswered marks the answer of the handler of an idempotent endpoint, also where it
	// is replayed.
	ResultAnswered = "answered"
)

// Result returns the value of [ResultHeader] for a refusal, and for nil [ResultAnswered]. A
// function given to Render of an adapter sets it:
//
//	w.Header().Set(idempotency.ResultHeader, idempotency.Result(refusal))
func Result(refusal *core.Refusal) string {
	if refusal == nil {
		return ResultAnswered
	}
	return carrier.Result(string(refusal.Reason), refusal.Ran)
}
