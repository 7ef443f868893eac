package idempotency

import (
	"testing"

	"github.com/interlock-go/interlock/core/idempotency/endpoint"
)

func TestAStoredContentCodingIsReplayedOnlyToAClientThatAcceptsIt(t *testing.T) {
	for _, c := range []struct {
		stored string
		accept []string
		want   bool
	}{
		{"", nil, true},
		{"identity", nil, true},
		{"gzip", nil, false},
		{"gzip", []string{""}, false},
		{"gzip", []string{"gzip"}, true},
		{"gzip", []string{"deflate, GZIP;q=0.5 , br"}, true},
		{"gzip", []string{"br", "gzip"}, true},
		{"GZip", []string{"x-gzip"}, true},
		{"gzip", []string{"br, deflate"}, false},
		{"gzip", []string{"gzip;q=0"}, false},
		{"gzip", []string{"gzip; Q = 0.000"}, false},
		{"gzip", []string{"identity"}, false},
		{"gzip", []string{"*"}, true},
		{"gzip", []string{"*;q=0"}, false},
		{"gzip", []string{"*, gzip;q=0"}, false},
		{"gzip", []string{"gzip;level=9"}, true},
		{"br, gzip", []string{"gzip"}, false},
		{"br, gzip", []string{"gzip, br"}, true},
		{"zstd", []string{"gzip, *;q=0.1"}, true},
	} {
		answer := endpoint.Response{Header: map[string][]string{"X": {"1"}}}
		if c.stored != "" {
			answer.Header["content-encoding"] = []string{c.stored}
		}
		// first is a request that got the coding it had asked for.
		first, again := &attempt{protocol: endpoint.HTTP, accept: []string{"*"}}, &attempt{protocol: endpoint.HTTP, accept: c.accept}
		stored := first.noting(answer)
		if got := again.mayReplay(&stored); got != c.want {
			t.Errorf("%q, accepted is %q: %v", c.stored, c.accept, got)
		}
		if len(stored.Header) != len(answer.Header) {
			t.Errorf("%q: %v is replayed", c.stored, stored.Header)
		}
		// A handler that encodes for every client answers its duplicates likewise.
		if stored = again.noting(answer); !c.want && !again.mayReplay(&stored) {
			t.Errorf("%q, accepted is %q, and was sent all the same: it is not replayed", c.stored, c.accept)
		}
	}
}
