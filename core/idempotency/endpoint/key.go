package endpoint

import (
	"fmt"
	"strings"

	"github.com/interlock-go/interlock/core"
)

// MaxKey is the length of the longest idempotency key, in characters. Quotes and
// escapes do not count.
const MaxKey = 255

var (
	// ErrKeyMissing says that a request has no idempotency key. It also matches
	// [core.ErrKey].
	ErrKeyMissing = fmt.Errorf("%w: no idempotency key", core.ErrKey)
	// ErrKeyMalformed says that the idempotency key of a request cannot be read.
	// The text names the fault of the key, and does not show the key. It also matches
	// [core.ErrKey].
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

// bare are the bytes of a key without quotes: the bytes of a token in RFC 9651,
// 3.3.4, wherever they stand (a UUID may begin with a digit), and "=" and "@",
// for base64 and addresses. A comma is none: it is what two headers in one are
// joined with.
var bare = func() (set [256]bool) {
	for _, c := range "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789!#$%&'*+-.^_`|~:/=@" {
		set[c] = true
	}
	return set
}()
