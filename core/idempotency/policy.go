package idempotency

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"maps"
	"net/textproto"
	"slices"
	"strings"

	"github.com/interlock-go/interlock/core/idempotency/endpoint"
)

// class is what an answer says about whether the request was carried out.
type class int

const (
	// final: it was, or never will be.
	final class = iota
	// invalid: it never will be as it is, and nothing was done for it.
	invalid
	// deferred: it was not, and may be later.
	deferred
	// failed: the handler does not know, or should not be believed.
	failed
)

// classify is the one table of statuses.
//
// The statuses of our own refusals are never final: the handler may have been refused a lock
// that it took itself, or may hand on what another service refused. Nor is an answer final
// that asks the client to send the same request once more: to another place (307, 308), with
// credentials (401), or with a payment (402 of x402 and of the Payment authentication scheme).
func classify(protocol string, status int) class {
	if protocol == endpoint.GRPC {
		switch status {
		case 1, 2, 4, 13, 14, 15: // CANCELLED, UNKNOWN, DEADLINE_EXCEEDED, INTERNAL, UNAVAILABLE, DATA_LOSS
			return failed
		case 3, 11: // INVALID_ARGUMENT, OUT_OF_RANGE
			return invalid
		case 8, 10, 16: // RESOURCE_EXHAUSTED, ABORTED, UNAUTHENTICATED
			return deferred
		}
		return final
	}
	if protocol == endpoint.Func {
		if status == endpoint.FuncFailed {
			return failed
		}
		return final
	}
	switch status {
	case 400, 422:
		return invalid
	case 307, 308, 401, 402, 408, 409, 423, 425, 429:
		return deferred
	}
	if status >= 500 || status == 499 { // nginx, and CANCELLED in Connect: the client has gone
		return failed
	}
	return final
}

// classOf is the class of a handler's answer after the function given to [StoreIf]; k
// is its class by default. The function sees no part of an answer that has left
// already.
func (e *Engine) classOf(ctx context.Context, k class, answer endpoint.Response, f facts) class {
	if e.config.storeIf == nil || k != final && k != invalid || f.overflow != fits || f.long || e.confirms(ctx, answer) {
		return k
	}
	return failed
}

// confirms asks the function given to StoreIf. The effect has happened by then, so a panic of
// the function must not keep the claim, and not make the effect happen again.
func (e *Engine) confirms(ctx context.Context, answer endpoint.Response) (ok bool) {
	defer func() {
		if p := recover(); p != nil {
			e.log(ctx, slog.LevelError, "interlock: the StoreIf function panicked; the response is stored", fmt.Errorf("panic: %v", p))
			ok = true
		}
	}()
	answer.Header, answer.Trailer = cloned(answer.Header), cloned(answer.Trailer)
	answer.Body = bytes.Clone(answer.Body)
	return e.config.storeIf(ctx, answer)
}

// cloned is a deep copy of header fields.
func cloned(fields map[string][]string) map[string][]string {
	copied := maps.Clone(fields)
	for name, values := range copied {
		copied[name] = slices.Clone(values)
	}
	return copied
}

// success reports whether a status says success.
func success(protocol string, status int) bool {
	if protocol == endpoint.GRPC {
		return status == 0
	}
	if protocol == endpoint.Func { // an answer that the function stands by
		return status != endpoint.FuncFailed
	}
	return status < 400
}

// policy are the options that say which answers are stored.
type policy struct{ strict, storeAll, releaseInvalid bool }

// stores reports whether an answer is stored; otherwise its claim is given up.
func (p policy) stores(k class, marked bool) bool {
	return k == final || k == invalid && !p.releaseInvalid || marked || p.storeAll || p.strict && k == failed
}

// panicAnswer is the answer that is stored for a handler that panicked.
func panicAnswer(protocol string) endpoint.Response {
	if protocol == endpoint.GRPC {
		return endpoint.Response{Status: 13} // INTERNAL
	}
	if protocol == endpoint.Func {
		return endpoint.Response{Status: endpoint.FuncFailed, Body: []byte("interlock: the function panicked")}
	}
	return endpoint.Response{
		Status: 500,
		Header: map[string][]string{"Content-Type": {"application/problem+json"}},
		Body:   []byte(`{"type":"about:blank","title":"Internal Server Error","status":500}`),
	}
}

// passes reports whether a request is none of the engine's: its method has no
// effects (RFC 9110, 9.2.1; QUERY is registered as safe, too). TRACE is not in the
// list, since no server should have it.
func passes(protocol, method string) bool {
	return protocol == endpoint.HTTP && (method == "GET" || method == "HEAD" || method == "OPTIONS" || method == "QUERY")
}

// isForeign reports whether a request of HTTP belongs to a protocol inside it with
// separate statuses, which come after the header or in the body: gRPC and gRPC-Web, and
// the streams of Connect. All their answers are 200, and a failure would be stored.
func isForeign(call endpoint.Call) bool {
	if call.Protocol() != endpoint.HTTP {
		return false
	}
	for _, value := range call.Header("Content-Type") {
		kind := strings.ToLower(strings.TrimSpace(value))
		if strings.HasPrefix(kind, "application/grpc") || strings.HasPrefix(kind, "application/connect+") {
			return true
		}
	}
	return false
}

// storedHeader returns which header fields of a response are stored.
func (c *config) storedHeader(protocol string, header map[string][]string) func(name string) bool {
	// That the first answer said its length is stored, since then the replay says its
	// own. Without its coding a body cannot be read.
	isBodys := func(name string) bool {
		return protocol == endpoint.HTTP &&
			(strings.EqualFold(name, "Content-Length") || strings.EqualFold(name, "Content-Encoding") || name == negotiated)
	}
	if c.headers != nil {
		return func(name string) bool { return isBodys(name) || c.headers[textproto.CanonicalMIMEHeaderKey(name)] }
	}
	var named []string // by Connection: they are for this connection only
	if protocol == endpoint.HTTP {
		for name, values := range header {
			if strings.EqualFold(name, "Connection") {
				named = append(named, values...)
			}
		}
	}
	return func(name string) bool {
		return isBodys(name) || !isOwn(strings.ToLower(name)) && (named == nil || !isOneOf(named, name))
	}
}

// isOwn reports whether a header field, in lower case, belongs to one response
// alone.
func isOwn(name string) bool {
	if _, found := slices.BinarySearch(own, name); found {
		return true
	}
	for _, prefix := range []string{"ratelimit-", "x-ratelimit-", "x-rate-limit-", "x-b3-", "grpc-"} {
		if strings.HasPrefix(name, prefix) {
			return true
		}
	}
	return false
}

// own are the names, sorted: what a server or a proxy writes for each message,
// hop-by-hop fields (RFC 9110, 7.6.1), what sets a client's state, ids of traces
// and requests, rate limits.
var own = func() []string {
	names := []string{
		"date", "content-length", "age", "via", strings.ToLower(ReplayedHeader), strings.ToLower(InterimHeader), strings.ToLower(ResultHeader),
		"connection", "keep-alive", "proxy-connection", "proxy-authenticate", "proxy-authorization",
		"proxy-authentication-info", "te", "trailer", "transfer-encoding", "upgrade",
		"set-cookie", "set-cookie2",
		"traceparent", "tracestate", "traceresponse", "baggage", "b3", "uber-trace-id", "x-trace-id",
		"x-amzn-trace-id", "x-cloud-trace-context", "request-id", "x-request-id", "x-correlation-id",
		"server-timing", "ratelimit",
	}
	slices.Sort(names)
	return names
}()
