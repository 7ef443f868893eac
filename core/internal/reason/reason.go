// Package reason holds the reasons for a refusal that package idempotency gives and
// explains. Package core has the texts and the rules of all reasons, and cannot
// import idempotency.
package reason

// The reasons; see the constants of package idempotency.
const (
	KeyMissing          = "idempotency-key-missing"
	KeyMalformed        = "idempotency-key-malformed"
	NoPrincipal         = "idempotency-no-principal"
	KeyReused           = "idempotency-key-reused"
	InFlight            = "idempotency-in-flight"
	OutcomeUnknown      = "idempotency-outcome-unknown"
	ResponseUnavailable = "idempotency-response-unavailable"
	ResponseTooLarge    = "idempotency-response-too-large"
	RolledBack          = "idempotency-rolled-back"
	KeyExpired          = "idempotency-key-expired"
	NoRecord            = "idempotency-unavailable"
)
