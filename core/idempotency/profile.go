package idempotency

import (
	"fmt"
	"net/url"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/reason"
)

// Profile makes the endpoint answer as a published protocol demands. It is for HTTP;
// docs/idempotency-clients.md compares the profiles rule by rule. Default: [reason.IETFDraft].
//
// [reason.AgenticCommerce] (section numbers are of the RFC "Agentic Checkout"):
//   - Keys belong to the principal and the endpoint (6.1), as with [PerEndpoint].
//   - Bodies are compared as JSON (6.2), as with [EqualJSON].
//   - A refusal is {"type", "code", "message"} with the protocol's codes (6.4): 400
//     idempotency_key_required, 409 idempotency_in_flight with Retry-After, 422
//     idempotency_conflict. A reason that the protocol has no code for has its own name
//     ([reason.Reason]) with underscores.
//   - An answer to a POST repeats the key in the header Idempotency-Key (3.1).
//
// [reason.UniversalCommerce] (section "Specific Header Requirements"):
//   - Keys belong to the principal and the endpoint, as with [PerEndpoint].
//   - Bodies are compared byte by byte, as by default.
//   - A refusal is {"code", "content"}. A key that was used with another body gets 409, and
//     no other refusal of the endpoint does: a client that takes 409 for that would make a
//     new key, and pay twice. A request in flight gets 503 with Retry-After, an outcome that
//     is unknown or cannot be replayed 500.
//
// Both demand that answers are kept for 24 h. New returns, and With panics with, an error
// that matches [core.ErrConfig] where another option contradicts the protocol: a shorter
// [Retention], [FailOpen] or [ReleaseInvalid]; with AgenticCommerce also [Optional], [StoreAll],
// [Strict] and [Tombstone]. A handler that calls [MarkEffect] is beyond the check: its
// failure is stored, which AgenticCommerce forbids (6.5).
//
// A function given to Render of an adapter replaces the form of refusals. In gRPC a refusal
// has its usual status; package once has its own keys and errors.
func Profile(p reason.Profile) Option {
	return func(c *config) {
		switch p {
		case reason.IETFDraft, reason.AgenticCommerce, reason.UniversalCommerce:
			c.profile = p
		default:
			c.fail("Profile(%q): not a profile of package reason", p)
		}
	}
}

// PerEndpoint makes a key belong to its principal and its endpoint, which is the method and
// the path as the client sent it. The same key at another endpoint is another key. Operators
// give [Engine.Resolve] and [Engine.Forget] the scope that [EndpointScope] makes. Records made
// without the option are not found. Default: off; a key that was used at one endpoint is
// refused at another ([reason.KeyReused]).
func PerEndpoint() Option {
	return func(c *config) { c.perEndpoint = true }
}

const endpointScope = reservedScope + "endpoint "

// EndpointScope returns the scope of a key under [PerEndpoint]. principal is the result of the
// function given to [Scope], empty under [Global]. path is the path of the request as [Parts]
// has it: decoded, with %25 for a percent sign and %2F for a slash inside a segment. In gRPC
// the method is empty, and the path the full method. The scope is "interlock endpoint POST
// /payments alice", with the path escaped.
func EndpointScope(principal, method, path string) string {
	// An escaped path has no space: no two endpoints and principals make one text. No principal
	// begins like it.
	return endpointScope + method + " " + (&url.URL{Path: path}).EscapedPath() + " " + principal
}

// contradiction returns an error for an option that the profile's protocol forbids.
func (c *config) contradiction() error {
	if c.profile == reason.IETFDraft {
		return nil
	}
	agentic := c.profile == reason.AgenticCommerce
	for _, forbidden := range []struct {
		given  bool
		option string
	}{
		{c.retention < defaultRetention, fmt.Sprintf("Retention below %v", defaultRetention)},
		{c.failOpen, "FailOpen"},
		{c.releaseInvalid, "ReleaseInvalid"},
		{agentic && c.optional, "Optional"},
		{agentic && c.storeAll, "StoreAll"},
		{agentic && c.strict, "Strict"},
		{agentic && c.tombstone > 0, "Tombstone"},
	} {
		if forbidden.given {
			return fmt.Errorf("%w: Profile(%q) and %s: the protocol forbids it", core.ErrConfig, c.profile, forbidden.option)
		}
	}
	return nil
}
