// Package ident makes the names by which the parts of a process are told apart from
// those of all other processes.
package ident

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"encoding/hex"
)

// New returns 128 random bits as 32 hexadecimal digits.
func New() string {
	var b [16]byte
	rand.Read(b[:]) // never fails (crypto/rand, Go 1.24)
	return hex.EncodeToString(b[:])
}

// Hash returns the first 64 bits of the SHA-256 of a key, in hexadecimal: what logs
// and traces say of a key that may be secret.
func Hash(key string) string {
	sum := sha256.Sum256([]byte(key))
	return hex.EncodeToString(sum[:8])
}

// Record is the name of an idempotency key's record: a hash, since principals and keys
// are secrets and may hold anything. Lengths stand before the parts, or ("a", "bc") and
// ("ab", "c") would be one.
func Record(scope, key string) string {
	buf := make([]byte, 0, 512)
	buf = binary.BigEndian.AppendUint64(buf, uint64(len(scope)))
	buf = append(buf, scope...)
	buf = append(buf, key...)
	sum := sha256.Sum256(buf)
	var name [43]byte
	base64.RawURLEncoding.Encode(name[:], sum[:])
	return string(name[:])
}
