package reason

// Profile names the form of refusals of an idempotent endpoint over HTTP: the form of the
// IETF draft, or the form of a published protocol. idempotency.Profile sets it, and says
// what else it changes. An application finds it in core.Refusal.
type Profile string

const (
	// IETFDraft is the draft "The Idempotency-Key HTTP Header Field", 2.6 and 2.7, with
	// problem details (RFC 9457). It is the default.
	IETFDraft Profile = ""
	// AgenticCommerce is the Agentic Commerce Protocol: the RFC "Agentic Checkout", section
	// 6, and the RFC "Delegate Payment", section 5, at API version 2026-04-17.
	AgenticCommerce Profile = "agentic-commerce"
	// UniversalCommerce is the Universal Commerce Protocol, version 2026-04-08: "Checkout
	// REST binding", section "Specific Header Requirements", and "Message signatures",
	// section "Replay Protection", the latter with the rule "Payload Matching" as of
	// 2026-08-22.
	UniversalCommerce Profile = "universal-commerce"
)
