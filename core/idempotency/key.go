package idempotency

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"strings"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/internal/ident"
)

// MaxKey is the length of the longest idempotency key, in characters. Quotes and
// escapes do not count.
const MaxKey = 255

var (
	// ErrKeyMissing says that a request has no idempotency key. It also matches
	// [core.ErrKey].
	ErrKeyMissing = fmt.Errorf("%w: no idempotency key", core.ErrKey)
	// ErrKeyMalformed says that the idempotency key of a request cannot be read.
	// The text says what is wrong with the key, and does not show it. It also
	// matches [core.ErrKey].
	ErrKeyMalformed = fmt.Errorf("%w: malformed idempotency key", core.ErrKey)
)

// ParseKey reads an idempotency key from the values that a request gives for it.
// There must be exactly one value: a string in double quotes (RFC 9651, 3.3.3), or
// the same text without quotes if it consists of letters, digits and
// !#$%&'*+-.^_`|~:/=@ only. Both give the same key, which is returned without
// quotes. Spaces and tabs around the value are ignored.
//
// The error matches [ErrKeyMissing] if there is no value, else [ErrKeyMalformed]:
// the value is empty, malformed, longer than [MaxKey], or not the only one.
func ParseKey(values []string) (string, error) {
	switch len(values) {
	case 0:
		return "", ErrKeyMissing
	case 1:
	default:
		return "", fmt.Errorf("%w: given more than once", ErrKeyMalformed)
	}
	key := strings.Trim(values[0], " \t")
	if strings.HasPrefix(key, `"`) {
		var err error
		if key, err = unquote(key); err != nil {
			return "", err
		}
	} else {
		for i := range len(key) {
			if !bare[key[i]] {
				return "", fmt.Errorf("%w: byte %d is not one of a key without quotes: "+
					"spaces, commas and braces are accepted in double quotes", ErrKeyMalformed, i)
			}
		}
	}
	switch {
	case key == "":
		return "", fmt.Errorf("%w: empty", ErrKeyMalformed)
	case len(key) > MaxKey:
		return "", fmt.Errorf("%w: %d characters, at most %d are accepted", ErrKeyMalformed, len(key), MaxKey)
	}
	return key, nil
}

// unquote reads a string of RFC 9651, 3.3.3: visible ASCII and spaces, with a
// backslash before a quote or a backslash. Nothing may follow it: a parameter
// would be dropped in silence, and what two clients take for two keys be one.
func unquote(s string) (string, error) {
	var b strings.Builder
	for i := 1; i < len(s); i++ {
		c := s[i]
		switch {
		case c == '"':
			if i != len(s)-1 {
				return "", fmt.Errorf("%w: something follows the closing quote", ErrKeyMalformed)
			}
			return b.String(), nil
		case c == '\\':
			i++
			if i == len(s) || s[i] != '"' && s[i] != '\\' {
				return "", fmt.Errorf("%w: a backslash before something else than a quote or a backslash", ErrKeyMalformed)
			}
			c = s[i]
		case c < 0x20 || c > 0x7e:
			return "", fmt.Errorf("%w: byte %d is not visible ASCII", ErrKeyMalformed, i)
		}
		b.WriteByte(c)
	}
	return "", fmt.Errorf("%w: no closing quote", ErrKeyMalformed)
}

// bare are the bytes of a key without quotes: those of a token in RFC 9651,
// 3.3.4, wherever they stand (a UUID may begin with a digit), and "=" and "@",
// for base64 and addresses. A comma is none: it is what two headers in one are
// joined with.
var bare = func() (set [256]bool) {
	for _, c := range "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789!#$%&'*+-.^_`|~:/=@" {
		set[c] = true
	}
	return set
}()

// recordID is the name of a key's record.
func recordID(scope, key string) string { return ident.Record(scope, key) }

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

// fingerprint tells requests with one key apart. The body is hashed where it is;
// only what is small is gathered first.
func fingerprint(protocol, method, path, query string, body []byte) (sum [sha256.Size]byte) {
	var room [512]byte
	head := room[:0]
	for _, s := range [...]string{protocol, method, path, query} {
		head = binary.BigEndian.AppendUint64(head, uint64(len(s)))
		head = append(head, s...)
	}
	h := sha256.New()
	h.Write(head)
	h.Write(body) // last, so it needs no length
	h.Sum(sum[:0])
	return sum
}
