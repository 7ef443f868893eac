package fencing

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
)

// IdempotencyKey derives a key for a service that looks at no token, but carries
// out one request for each idempotency key. Make it of what must happen once, such
// as ("invoice", "4711", "settle"), and of nothing else: then it is the same in
// every process and every attempt. A fencing token must not be part of it: the
// retry after a lost lease has another token, and would be carried out again.
//
// Parts are kept apart: ("a", "bc") and ("ab", "c") give two keys. The key has the
// form of a UUID (version 8, RFC 9562). It does not show its parts, but a reader
// that can guess the parts can compute it. In the handler of an idempotent endpoint
// use idempotency.DownstreamKey, which is made of the client's own key.
func IdempotencyKey(operation string, parts ...string) string {
	buf := []byte("interlock idempotency key\n")
	for _, part := range append([]string{operation}, parts...) {
		buf = binary.BigEndian.AppendUint64(buf, uint64(len(part)))
		buf = append(buf, part...)
	}
	sum := sha256.Sum256(buf)
	sum[6] = sum[6]&0x0f | 0x80 // version
	sum[8] = sum[8]&0x3f | 0x80 // variant
	return fmt.Sprintf("%x-%x-%x-%x-%x", sum[0:4], sum[4:6], sum[6:8], sum[8:10], sum[10:16])
}
