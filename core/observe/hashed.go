package observe

import (
	"fmt"
	"io"
	"log/slog"

	"github.com/interlock-go/interlock/core/internal/ident"
)

// Hashed is a text that identifies a user: a key, a principal. Printed, logged by
// log/slog or marshaled, it shows its hash ([Hashed.Hash]). string(h) is the text
// itself. Do not use a Hashed as the key of a map that encoding/json marshals: that
// shows the text itself.
type Hashed string

// Hash returns what stands for a key where the key itself would tell too much: the
// first 64 bits of its SHA-256, as 16 hexadecimal digits. It is the same in every
// process and release, so that a key can be found by its hash:
// core.Hashed("account/42").Hash(). It does not hide the key from a reader who can
// try out all possible keys. The hash of an empty text is empty.
func (h Hashed) Hash() string {
	if h == "" {
		return ""
	}
	return ident.Hash(string(h))
}

// String returns the hash; see [Hashed.Hash].
func (h Hashed) String() string { return h.Hash() }

// Format implements [fmt.Formatter] and prints the hash for all verbs, because some
// verbs do not use String.
func (h Hashed) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, h.Hash()) }

// LogValue implements [slog.LogValuer] and returns the hash.
func (h Hashed) LogValue() slog.Value { return slog.StringValue(h.Hash()) }

// MarshalText implements [encoding.TextMarshaler] and returns the hash. JSON uses
// it.
func (h Hashed) MarshalText() ([]byte, error) { return []byte(h.Hash()), nil }
