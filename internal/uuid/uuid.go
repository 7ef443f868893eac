// Package uuid makes idempotency keys for clients without keys.
package uuid

import (
	"crypto/rand"
	"encoding/binary"
	"fmt"
	"time"
)

// New returns a UUID of version 7 (RFC 9562, 5.7): the time in milliseconds, and 74 random
// bits. It is safe for concurrent use.
func New() string {
	var b [16]byte
	_, _ = rand.Read(b[:])                                                                                      // it never fails
	binary.BigEndian.PutUint64(b[:], uint64(time.Now().UnixMilli())<<16|uint64(binary.BigEndian.Uint16(b[6:]))) //nolint:gosec // after 1970
	b[6] = b[6]&0x0f | 0x70
	b[8] = b[8]&0x3f | 0x80
	return fmt.Sprintf("%x-%x-%x-%x-%x", b[:4], b[4:6], b[6:8], b[8:10], b[10:])
}
