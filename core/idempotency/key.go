package idempotency

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"

	"github.com/interlock-go/interlock/core"
)

const (
	// KeyHeader is the header of the idempotency key (the IETF draft "The
	// Idempotency-Key HTTP Header Field"). In gRPC it is metadata with this name in
	// lower case.
	KeyHeader = "Idempotency-Key"
	// ReplayedHeader is set to "true" on a response that was replayed.
	ReplayedHeader = "Idempotent-Replayed"
	// ResultHeader marks the responses of guards and idempotent endpoints over HTTP, so that a
	// client can tell them from the responses of a proxy, or of middleware in front. It is
	// [ResultAnswered], or the reason of a refusal ([reason.Reason]), which has the parameter
	// ";ran" if the handler ran. In gRPC the answer of a handler has it, in lower case.
	ResultHeader = "Interlock-Result"
	// ResultAnswered marks the answer of the handler of an idempotent endpoint, also where it
	// is replayed.
	ResultAnswered = "answered"
)

// Result returns the value of [ResultHeader] for a refusal, and for nil [ResultAnswered]. A
// function given to Render of an adapter sets it:
//
//	w.Header().Set(idempotency.ResultHeader, idempotency.Result(refusal))
func Result(refusal *core.Refusal) string {
	switch {
	case refusal == nil:
		return ResultAnswered
	case refusal.Ran:
		return string(refusal.Reason) + ";ran"
	}
	return string(refusal.Reason)
}

// downstreamKey derives a key for another service from a record's name. It has
// the form of a UUID (version 8, RFC 9562), which every such service takes.
func downstreamKey(id string, steps []string) string {
	h := sha256.New()
	h.Write([]byte("interlock downstream key\n" + id))
	for _, s := range steps {
		var n [8]byte
		binary.BigEndian.PutUint64(n[:], uint64(len(s)))
		h.Write(n[:])
		h.Write([]byte(s))
	}
	sum := h.Sum(nil)
	sum[6] = sum[6]&0x0f | 0x80 // version
	sum[8] = sum[8]&0x3f | 0x80 // variant
	var b [36]byte
	hex.Encode(b[0:8], sum[0:4])
	hex.Encode(b[9:13], sum[4:6])
	hex.Encode(b[14:18], sum[6:8])
	hex.Encode(b[19:23], sum[8:10])
	hex.Encode(b[24:36], sum[10:16])
	b[8], b[13], b[18], b[23] = '-', '-', '-', '-'
	return string(b[:])
}
