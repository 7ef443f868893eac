// Package ident makes names for the parts of a process that differ from the names in
// all other processes.
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

// Downstream derives a key for another service from a record's name. It has
// the form of a UUID (version 8, RFC 9562), which every such service takes.
func Downstream(id string, steps []string) string {
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
