package observe

// The outcomes of a request to an idempotent endpoint ([Decided.Outcome]).
const (
	// DecidedStored: the handler ran and its response was stored.
	DecidedStored = "stored"
	// DecidedPending: the handler ran and its response was sent, but the store did
	// not confirm that it has the response. The engine goes on storing it in the
	// background.
	DecidedPending = "pending"
	// DecidedReleased: the handler ran and failed; the next request runs it again.
	DecidedReleased = "released"
	// DecidedReplayed: the stored response was sent.
	DecidedReplayed = "replayed"
	// DecidedRefused: the request was refused.
	DecidedRefused = "refused"
	// DecidedUnknown: the handler ran and failed after its claim or its lock was
	// lost. Nothing was stored, and the claim ends with its lease.
	DecidedUnknown = "unknown"
)
