package core

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/interlock-go/interlock/core/driver"
	"github.com/interlock-go/interlock/core/internal/carrier"
)

// Fence is the key of a lock and the fencing token of its holder.
type Fence struct {
	Key   string
	Token int64
}

// Fences returns the keys and fencing tokens of all locks that ctx runs under alone,
// sorted by key, each key once. In a handler under a rule of [Fenced] these include the locks
// of the caller that the rule asked for. Claim them in this order in the resource that the
// locks protect (package core/fencing). Shared locks and permits have several holders with
// different tokens, so they are not in the list. It is empty if ctx runs under no
// lease.
func Fences(ctx context.Context) []Fence {
	fences := slices.Clone(claimedFences(ctx))
	for l := LeaseFromContext(ctx); l != nil; l = l.outer() {
		for _, w := range l.locks() {
			if w.Terms.Kind == driver.Exclusive {
				fences = append(fences, Fence{w.Key(), w.Token()})
			}
		}
	}
	return sortFences(fences)
}

// claimedFences returns the fences that rules of [Fenced] have claimed for the request of ctx.
func claimedFences(ctx context.Context) []Fence {
	fences, _ := carrier.Value(ctx, carrier.Fences).([]Fence)
	return fences
}

// sortFences sorts fences by key, and leaves the greatest token of each key.
func sortFences(fences []Fence) []Fence {
	slices.SortFunc(fences, func(a, b Fence) int {
		return cmp.Or(cmp.Compare(a.Key, b.Key), cmp.Compare(b.Token, a.Token))
	})
	return slices.CompactFunc(fences, func(a, b Fence) bool { return a.Key == b.Key })
}

// FencesHeader names a header field, in gRPC a field of the metadata, that must come from
// inside only: a forged token of the greatest value closes a resource to all others. A proxy
// at the edge deletes the field: proxy_set_header Interlock-Fences ""; in nginx. The field has
// the keys and fencing tokens of the locks that the sender of a request holds alone. Clients
// of this module send it where they are asked to ([FencesFor]), and a rule of [Fenced] reads
// it.
//
//	Interlock-Fences: account/42=1764221029123456, account/43=1764221029123472
//
// It is a list of keys and tokens with commas between them, each key once. Letters, digits and
// - . _ ~ / of a key are as they are. Any other byte is a % and two hexadecimal digits. A token
// is a decimal number of at least 1. The field has at most 4096 bytes.
const FencesHeader = "Interlock-Fences"

// maxFences is the length of the longest field, in bytes. Proxies and servers take header
// fields of 8 KiB in all.
const maxFences = 4096

// FencesFor returns the value of [FencesHeader] for a request that is sent under ctx: all of
// [Fences], and the tokens that a rule of [Fenced] or [Relay] has found in the request of ctx, of
// two tokens of a key the greater. It is empty if there are none. The keys are in plain text, so
// it is for services inside only. Its error matches [ErrConfig]: the tokens do not fit into the
// field.
func FencesFor(ctx context.Context) (string, error) {
	var b []byte
	fences := Fences(ctx)
	if relayed, _ := carrier.Value(ctx, carrier.Relayed).([]Fence); len(relayed) > 0 {
		fences = sortFences(append(fences, relayed...))
	}
	for i, f := range fences {
		if i > 0 {
			b = append(b, ", "...)
		}
		for j := range len(f.Key) {
			if f.Key[j] == '/' {
				b = append(b, '/')
			} else {
				b = appendEscaped(b, f.Key[j:j+1])
			}
		}
		b = strconv.AppendInt(append(b, '='), f.Token, 10)
		if len(b) > maxFences {
			return "", fmt.Errorf("%w: the keys and tokens of %d locks are longer than the %d bytes of %s", ErrConfig, len(fences), maxFences, FencesHeader)
		}
	}
	return string(b), nil
}

// withRelayed returns a context from which FencesFor passes on the fences that a request came with.
func withRelayed(ctx context.Context, sent map[string]int64) context.Context {
	if len(sent) == 0 {
		return ctx
	}
	relayed := make([]Fence, 0, len(sent))
	for key, token := range sent {
		relayed = append(relayed, Fence{key, token})
	}
	return context.WithValue(ctx, carrier.Relayed, relayed)
}

// parseFences returns the fences of a field by key. A field that is missing or empty has none.
func parseFences(values []string) (map[string]int64, error) {
	switch {
	case len(values) == 0 || len(values) == 1 && values[0] == "":
		return nil, nil
	case len(values) > 1:
		return nil, fmt.Errorf("%w: %s is given %d times", errTokenMalformed, FencesHeader, len(values))
	case len(values[0]) > maxFences:
		return nil, fmt.Errorf("%w: %s has %d bytes, and at most %d are accepted", errTokenMalformed, FencesHeader, len(values[0]), maxFences)
	}
	fences := make(map[string]int64)
	for part := range strings.SplitSeq(values[0], ",") {
		escaped, number, _ := strings.Cut(strings.Trim(part, " \t"), "=")
		key, err := url.PathUnescape(escaped)
		token, numeric := parseToken(number)
		if _, twice := fences[key]; err != nil || !numeric || twice || checkKey(key) != nil {
			return nil, fmt.Errorf("%w: part %d of %s", errTokenMalformed, len(fences)+1, FencesHeader)
		}
		fences[key] = token
	}
	return fences, nil
}

// parseToken returns a token in decimal digits.
func parseToken(number string) (int64, bool) {
	token, err := strconv.ParseUint(number, 10, 64)                        // takes no sign
	return int64(token), err == nil && 0 < token && token <= math.MaxInt64 //nolint:gosec // compared
}

// The errors of a request to a rule of [Fenced].
var (
	errStaleToken     = errors.New("interlock: the caller's lock has had another holder since")
	errTokenMissing   = errors.New("interlock: no fencing token")
	errTokenMalformed = errors.New("interlock: malformed fencing tokens")
)
