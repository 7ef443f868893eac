// Package ident makes the names by which the parts of a process are told apart from
// those of all other processes.
package ident

import (
	"crypto/rand"
	"crypto/sha256"
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
