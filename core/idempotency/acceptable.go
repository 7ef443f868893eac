package idempotency

import (
	"errors"
	"maps"
	"strconv"
	"strings"

	"github.com/interlock-go/interlock/core/idempotency/endpoint"
)

// errNotAcceptable is the cause of a refusal: the client does not accept the encoding of the
// replay.
var errNotAcceptable = errors.New("interlock: the stored response has a content coding that the request does not accept: " +
	"put the middleware that compresses responses in front of the idempotent endpoint")

// negotiated is the name of a field in the envelope of a response. It says that the
// request had accepted the coding of the response. It is no name that a header field can
// have. A handler that encodes for every client has the first response replayed as it was.
const negotiated = "interlock negotiated"

// noting returns an answer that is to be stored, with the field negotiated if it has a
// coding that its request accepts. A request accepts none unless it says so.
func (a *attempt) noting(answer endpoint.Response) endpoint.Response {
	if a.protocol != endpoint.HTTP || !isCoded(answer.Header) || !a.accepts(answer.Header) {
		return answer
	}
	answer.Header = maps.Clone(answer.Header)
	answer.Header[negotiated] = nil
	return answer
}

// mayReplay reports whether a request can be given a stored response, and takes the field
// negotiated from it.
func (a *attempt) mayReplay(r *endpoint.Response) bool {
	_, asked := r.Header[negotiated]
	delete(r.Header, negotiated)
	return !asked || a.accepts(r.Header)
}

// codings ranges over the content codings of a response.
func codings(header map[string][]string) func(yield func(string) bool) {
	return func(yield func(string) bool) {
		for name, values := range header {
			if !strings.EqualFold(name, "Content-Encoding") {
				continue
			}
			for coding := range items(values) {
				if !strings.EqualFold(coding, "identity") && !yield(coding) {
					return
				}
			}
		}
	}
}

func isCoded(header map[string][]string) bool {
	for range codings(header) {
		return true
	}
	return false
}

// accepts reports whether a request accepts the codings of a response. A request without
// the header accepts none: compression depends on the header.
func (a *attempt) accepts(header map[string][]string) bool {
	for coding := range codings(header) {
		if !accepted(a.accept, coding) {
			return false
		}
	}
	return true
}

// accepted reports whether the lines of an Accept-Encoding (RFC 9110, 12.5.3) accept a
// coding.
func accepted(lines []string, coding string) bool {
	others := false
	for item := range items(lines) {
		name, parameters, _ := strings.Cut(item, ";")
		name = strings.TrimSpace(name)
		key, weight, _ := strings.Cut(parameters, "=")
		q, err := strconv.ParseFloat(strings.TrimSpace(weight), 64)
		taken := err != nil || !strings.EqualFold(strings.TrimSpace(key), "q") || q > 0
		switch {
		case strings.EqualFold(strings.TrimPrefix(strings.ToLower(name), "x-"), strings.TrimPrefix(strings.ToLower(coding), "x-")):
			return taken
		case name == "*":
			others = taken
		}
	}
	return others
}

// items ranges over the items of a list in a header field.
func items(lines []string) func(yield func(string) bool) {
	return func(yield func(string) bool) {
		for _, line := range lines {
			for item := range strings.SplitSeq(line, ",") {
				if item = strings.TrimSpace(item); item != "" && !yield(item) {
					return
				}
			}
		}
	}
}
