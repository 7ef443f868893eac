// Package ident makes the names by which the parts of a process are told apart from
// those of all other processes.
package ident

import (
	"crypto/rand"
	"encoding/hex"
)

// New returns 128 random bits as 32 hexadecimal digits.
func New() string {
	var b [16]byte
	rand.Read(b[:]) // never fails (crypto/rand, Go 1.24)
	return hex.EncodeToString(b[:])
}
